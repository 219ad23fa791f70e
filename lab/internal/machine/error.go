//go:build linux

package machine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// errBoot reports a kernel that went down before the program started.
var errBoot = errors.New("the kernel did not come up")

// errOverloaded reports a host whose processors have too much to do for the limits of the lab.
var errOverloaded = errors.New("this machine is overloaded")

// tooLate is err, of what has not happened within a limit. It names the host's load if that is the likely cause:
// a guest gets its share of the processors only.
func tooLate(err error, limit time.Duration) error {
	err = fmt.Errorf("%w in %v", err, limit)
	if load, processors := hostLoad(); overloaded(load, processors) {
		return fmt.Errorf("%w: its load is %.0f on %d processors; run less beside the lab: %w", errOverloaded, load, processors, err)
	}
	return err
}

// hostLoad returns the load of the last minute, and the number of processors. Tests replace it.
var hostLoad = func() (load float64, processors int) {
	var info unix.Sysinfo_t
	unix.Sysinfo(&info) // without it the load is 0
	return float64(info.Loads[0]) / (1 << 16), runtime.NumCPU()
}

func overloaded(load float64, processors int) bool { return load >= 2*float64(processors) }

// errReuse reports a machine that is not fit for another program.
var errReuse = errors.New("the machine does not start another program")

// errSilent reports a machine that does not answer an order.
var errSilent = errors.New("no answer")

// ErrPatched reports a kernel that ran into a breakpoint of its own: see Runner.Run.
var ErrPatched = errors.New("the kernel ran code that it had just patched")

// errWarned reports a kernel that logged a bug of its own.
var errWarned = errors.New("the kernel warned")

// ErrDown reports a kernel that went down, or was powered off, while a program ran.
var ErrDown = errors.New("the kernel went down before the program ended")

// errClock reports a guest whose clocks run at wrong speeds, which makes measurements meaningless.
var errClock = errors.New("the clocks of the guest disagree")
