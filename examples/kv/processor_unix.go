//go:build unix

package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// processorTime returns for how long this process has run on a processor.
func processorTime() time.Duration {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u) // cannot fail
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
