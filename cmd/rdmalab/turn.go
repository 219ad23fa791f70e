//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/debian"
)

// turnMem is the memory in MiB that a machine takes with the default options.
const turnMem = 2500

// totalMem returns this machine's memory in MiB.
func totalMem() int {
	var info unix.Sysinfo_t
	unix.Sysinfo(&info) // it cannot fail
	return int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
}

// takeTurn waits until fewer than n machines run, of all that share the cache. go test starts a
// lab for each package, several at a time. Negative n is by this machine's processors and
// memory, 0 no limit.
func takeTurn(ctx context.Context, n int) (done func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	if n < 0 {
		n = max(1, min(runtime.NumCPU()/2, totalMem()/2/turnMem))
	}
	dir := debian.CacheDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	for waited := time.Duration(0); ; waited += 100 * time.Millisecond {
		for i := range n {
			f, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("turn-%d", i)), os.O_CREATE|os.O_RDWR, 0o666)
			if err != nil {
				return nil, err
			}
			if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
				return func() { f.Close() }, nil
			}
			f.Close()
		}
		if waited == 5*time.Second {
			fmt.Fprintf(os.Stderr, "lab: waiting for a turn, %d at a time (--parallel)\n", n)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a turn: %w", context.Cause(ctx))
		}
	}
}
