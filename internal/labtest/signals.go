//go:build linux

package labtest

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Signals sends the signals, one after the other, to every thread of a process
// until stop is called or the process is gone.
func Signals(pid int, signals ...unix.Signal) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
			if err != nil {
				return
			}
			for _, task := range tasks {
				tid, _ := strconv.Atoi(task.Name())
				unix.Tgkill(pid, tid, signals[i%len(signals)])
			}
			select {
			case <-done:
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
