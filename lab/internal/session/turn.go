//go:build linux

package session

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/debian"
)

// turnMem is the memory in MiB that a machine takes with the default options.
const turnMem = 2500

// totalMem returns this machine's memory in MiB.
func totalMem() int {
	var info unix.Sysinfo_t
	unix.Sysinfo(&info) // it cannot fail
	return int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
}

// takeTurn waits, in order of arrival, until fewer than n machines run of all that share the cache: go
// test starts a lab for each package, several at a time. If n is negative, this machine's processors and
// memory decide; 0 is no limit.
func takeTurn(ctx context.Context, n int) (done func(), err error) {
	if n == 0 {
		return func() {}, nil
	}
	if n < 0 {
		n = max(1, min(runtime.NumCPU()/2, totalMem()/2/turnMem))
	}
	t, err := newTicket(ctx, filepath.Join(debian.CacheDir(), "turns"))
	if err != nil {
		return nil, err
	}
	for waited := time.Duration(0); ; waited += 100 * time.Millisecond {
		ahead, err := t.ahead(ctx)
		if err == nil && len(ahead) < n {
			return t.discard, nil
		}
		if waited == 5*time.Second {
			fmt.Fprintf(os.Stderr, "lab: waiting for a turn, %d at a time (--parallel), after process %s\n", n, strings.Join(ahead, ", "))
		}
		if err == nil {
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
		}
		t.discard()
		return nil, fmt.Errorf("wait for a turn: %w", err)
	}
}

// ticket is a place in the queue: a file whose name has the next number and the process. The process
// holds a lock on it as long as it lives. Tickets change only while the queue is locked.
type ticket struct {
	dir  string
	file *os.File
}

func newTicket(ctx context.Context, dir string) (*ticket, error) {
	unlock, err := debian.Lock(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, _ := filepath.Glob(filepath.Join(dir, "[0-9]*"))
	number := 0
	if len(files) > 0 {
		fmt.Sscanf(filepath.Base(files[len(files)-1]), "%d", &number)
	}
	f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%012d-%d", number+1, os.Getpid())))
	if err != nil {
		return nil, err
	}
	return &ticket{dir, f}, unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
}

// ahead returns the processes with earlier tickets, and removes tickets of those that are dead.
func (t *ticket) ahead(ctx context.Context) (pids []string, err error) {
	unlock, err := debian.Lock(ctx, filepath.Join(t.dir, "lock"))
	if err != nil {
		return nil, err
	}
	defer unlock()
	files, _ := filepath.Glob(filepath.Join(t.dir, "[0-9]*"))
	for _, name := range files {
		if name == t.file.Name() {
			break
		}
		f, err := os.Open(name)
		if err != nil {
			continue // its process has ended just now
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
			os.Remove(name)
		} else {
			_, pid, _ := strings.Cut(filepath.Base(name), "-")
			pids = append(pids, pid)
		}
		f.Close()
	}
	return pids, nil
}

func (t *ticket) discard() {
	os.Remove(t.file.Name())
	t.file.Close()
}
