//go:build linux

// Package starve takes from a process what it needs, for tests also of the packages that labtest imports.
package starve

import (
	"errors"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Files calls read again and again while another goroutine takes the last file descriptor of the process
// now and then. Errors other than [unix.EMFILE] fail the test, and none at all.
func Files(t *testing.T, read func() error) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	next, err := unix.Open("/dev/null", unix.O_RDONLY, 0) // the lowest that is free
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(next)
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + 1, Max: old.Max}, nil); err != nil {
		t.Fatal(err)
	}
	defer unix.Prlimit(0, unix.RLIMIT_NOFILE, &old, nil)
	stop := make(chan struct{})
	var taking sync.WaitGroup
	taking.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if fd, err := unix.Open("/dev/null", unix.O_RDONLY, 0); err == nil {
				unix.Close(fd)
			}
		}
	})
	refused := 0
	for range 5000 {
		switch err := read(); {
		case errors.Is(err, unix.EMFILE):
			refused++
		case err != nil:
			t.Error(err)
		}
	}
	close(stop)
	taking.Wait()
	if refused == 0 {
		t.Error("files were never missed")
	}
}
