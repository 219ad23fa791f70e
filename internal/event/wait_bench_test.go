//go:build linux

package event

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/host"
)

// BenchmarkWait passes an event to another process and back, where both wait as C does, in a read
// that blocks, or as [Group] does. The two take turns; reported are the median and the 99th
// percentile of each, and the ratio of the medians.
func BenchmarkWait(b *testing.B) {
	const rounds = 200
	modes := []string{"read", "group"}
	var ends []func()
	times := make([][]float64, len(modes))
	for _, mode := range modes {
		ends = append(ends, startPeer(b, mode))
	}
	for b.Loop() {
		for i, pass := range ends {
			for range rounds {
				begin := time.Now()
				pass()
				times[i] = append(times[i], float64(time.Since(begin))/1e3)
			}
		}
	}
	for i, mode := range modes {
		slices.Sort(times[i])
		b.ReportMetric(times[i][len(times[i])/2], mode+"-us")
		b.ReportMetric(times[i][len(times[i])*99/100], mode+"-p99-us")
	}
	b.ReportMetric(times[0][len(times[0])/2]/times[1][len(times[1])/2], "read/group")
}

// startPeer starts a process that answers events, and returns a function that sends one to it
// and waits for the answer.
func startPeer(b *testing.B, mode string) (pass func()) {
	var fds [2]int
	var files []*os.File
	for i := range fds {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
		if err != nil {
			b.Fatal(err)
		}
		fds[i] = fd
		dup, err := unix.Dup(fd)
		if err != nil {
			b.Fatal(err)
		}
		files = append(files, os.NewFile(uintptr(dup), "eventfd"))
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "EVENT_PEER="+mode)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	for _, f := range files {
		f.Close()
	}
	wait := waitOn(mode, fds[1])
	b.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return func() {
		signal(fds[0])
		wait()
	}
}

func TestMain(m *testing.M) {
	if mode := os.Getenv("EVENT_PEER"); mode != "" {
		wait := waitOn(mode, 3)
		for {
			wait()
			signal(4)
		}
	}
	os.Exit(m.Run())
}

func signal(fd int) { unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}) }

// waitOn returns a function that waits for an event of an eventfd.
func waitOn(mode string, fd int) func() {
	if mode == "read" {
		return func() {
			var b [8]byte
			unix.Read(fd, b[:])
		}
	}
	f, err := host.NewEventFile(fd)
	if err != nil {
		panic(err)
	}
	s := &counter{file: f}
	s.group.Init(s)
	s.cond.Init(&s.group)
	s.read = func(fd int) error {
		var b [8]byte
		if _, err := unix.Read(fd, b[:]); err != nil {
			return err
		}
		s.mu.Lock()
		s.events++
		s.cond.Signal()
		s.mu.Unlock()
		return nil
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cond.Wait(context.Background(), &s.mu, nil, func() bool {
			if s.events == 0 {
				return false
			}
			s.events--
			return true
		})
	}
}

// counter is a source of events of one condition, as a completion channel is.
type counter struct {
	file   host.EventFile
	group  Group
	mu     sync.Mutex
	cond   Cond
	events int
	read   func(fd int) error
}

func (c *counter) Arm() error { return nil }
func (c *counter) Sleep(ctx context.Context, until time.Time) error {
	return c.file.Sleep(ctx, until, c.read)
}
func (c *counter) Wake() { c.file.Wake() }
