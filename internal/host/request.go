package host

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// Env is the environment variable that requests a device in user space, unless it is empty or 0.
const Env = "VERBS_SOFT"

// Requested reports whether the environment requests a device in user space.
func Requested() bool {
	v := os.Getenv(Env)
	return v != "" && v != "0"
}

// ErrNoSoft is returned for a request in a program without the code for devices in user space. It
// does not match [verbs.ErrNoRDMA], as a fallback to TCP would hide the mistake.
var ErrNoSoft = fmt.Errorf(`this program does not import _ "github.com/goverbs/verbs/soft": %w`, errors.ErrUnsupported)

var request struct {
	sync.Mutex
	fulfill func(value string) error // makes the device that the variable's value describes
	done    bool
	make    chan struct{} // asks the goroutine of OnRequest to call fulfill; nil without one
	made    chan error
}

// OnRequest sets the function that makes the device that the environment requests, and forgets a
// device that has been made. Package soft calls it. Nil sets none.
//
// A goroutine that starts with the program makes the device. If the testing/synctest bubble that
// lists devices first made it, the device's goroutines would belong to the bubble, and the bubble's
// clock would stop while they wait for packets.
func OnRequest(fulfill func(value string) error) {
	request.Lock()
	defer request.Unlock()
	request.fulfill, request.done = fulfill, false
	endMaker()
	if fulfill == nil || !Requested() {
		return
	}
	asked, made := make(chan struct{}), make(chan error)
	request.make, request.made = asked, made
	go func() {
		for range asked {
			made <- fulfill(os.Getenv(Env))
		}
	}()
}

// endMaker ends the goroutine of OnRequest. The caller holds the lock.
func endMaker() {
	if request.make != nil {
		close(request.make)
		request.make = nil
	}
}

// Prepare makes the device that the environment requests, unless it has been made. Lists of devices
// and users of its rdma_cm call it.
func Prepare() error {
	if !Requested() {
		return nil
	}
	request.Lock()
	defer request.Unlock()
	if request.done {
		return nil
	}
	err := ErrNoSoft
	switch {
	case request.make != nil:
		request.make <- struct{}{}
		err = <-request.made
	case request.fulfill != nil:
		err = request.fulfill(os.Getenv(Env))
	}
	if request.done = err == nil; request.done {
		endMaker()
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w", Env, os.Getenv(Env), err)
	}
	return nil
}
