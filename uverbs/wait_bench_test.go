//go:build linux

package uverbs

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/host"
)

// ways are those to wait for an event of a CQ, whose number is 1, on a file that stands for its completion channel:
// as C does, in a read that nothing can end; with the system calls of a wait that another goroutine can end; or as
// CQ.Wait does.
var ways = [...]string{"read", "ppoll", "channel"}

func waitBy(t testing.TB, way string, fd int) func() {
	if way != "channel" {
		var event [8]byte
		return func() {
			if way == "ppoll" {
				fds := [...]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}, {Fd: int32(fd), Events: unix.POLLIN}}
				for n := 0; n <= 0; { // not after a signal of the runtime
					n, _ = unix.Ppoll(fds[:], nil, nil)
				}
			}
			if _, err := unix.Read(fd, event[:]); err != nil {
				t.Fatal(err)
			}
		}
	}
	f, err := host.NewEventFile(fd)
	if err != nil {
		t.Fatal(err)
	}
	c := newChannel(f)
	cq := c.addCQ(1, nil)
	return func() {
		if err := c.wait(context.Background(), cq); err != nil {
			t.Fatal(err)
		}
	}
}

// signal is the event.
func signal(t testing.TB, fd int) {
	if _, err := unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
		t.Fatal(err)
	}
}

func newEventfd(t testing.TB) int {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

// BenchmarkChannelWait measures the wait of a lone goroutine for an event that is there, beside a read that blocks:
// the processor time of each, without that of the event, the least of a turn of 2,000, as other work on the machine
// only adds to it.
func BenchmarkChannelWait(b *testing.B) {
	const turn = 2000
	var fds [len(ways) + 1]int // the last has no wait
	var waits [len(fds)]func()
	var least [len(fds)]time.Duration
	for i := range fds {
		fds[i], waits[i], least[i] = newEventfd(b), func() {}, time.Hour
		if i < len(ways) {
			waits[i] = waitBy(b, ways[i], fds[i])
		}
	}
	for b.Loop() {
		for i, fd := range fds {
			began := processorTime(b)
			for range turn {
				signal(b, fd)
				waits[i]()
			}
			least[i] = min(least[i], processorTime(b)-began)
		}
	}
	for i, way := range ways {
		b.ReportMetric(float64(least[i]-least[len(ways)])/turn, way+"-ns")
	}
	b.ReportMetric(0, "ns/op")
}

func processorTime(t testing.TB) time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &at); err != nil {
		t.Fatal(err)
	}
	return time.Duration(at.Nano())
}

// BenchmarkChannelPeer passes an event to another process and back, where both wait in one way. The two take turns;
// reported are the median and the 99th percentile of each, and the ratio of the medians.
func BenchmarkChannelPeer(b *testing.B) {
	const turn = 200
	var passes []func()
	for _, way := range ways {
		passes = append(passes, startPeer(b, way))
	}
	times := make([][]float64, len(ways))
	for b.Loop() {
		for i, pass := range passes {
			for range turn {
				began := time.Now()
				pass()
				times[i] = append(times[i], float64(time.Since(began))/1e3)
			}
		}
	}
	for i, way := range ways {
		slices.Sort(times[i])
		b.ReportMetric(times[i][len(times[i])/2], way+"-us")
		b.ReportMetric(times[i][len(times[i])*99/100], way+"-p99-us")
	}
	last := times[len(ways)-1]
	b.ReportMetric(times[0][len(times[0])/2]/last[len(last)/2], "read/channel")
	b.ReportMetric(0, "ns/op")
}

// startPeer starts a process that answers events, and returns a function that sends one to it and waits for the answer.
func startPeer(b *testing.B, way string) (pass func()) {
	there, back := newEventfd(b), newEventfd(b)
	cmd := exec.Command(os.Args[0], "-test.run=^TestChannelPeer$")
	cmd.Env = append(os.Environ(), "CHANNEL_PEER="+way)
	cmd.Stderr = os.Stderr
	for _, fd := range []int{there, back} {
		dup, err := unix.Dup(fd)
		if err != nil {
			b.Fatal(err)
		}
		f := os.NewFile(uintptr(dup), "eventfd")
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	wait := waitBy(b, way, back)
	return func() {
		signal(b, there)
		wait()
	}
}

// TestChannelPeer is the other process of BenchmarkChannelPeer.
func TestChannelPeer(t *testing.T) {
	if way := os.Getenv("CHANNEL_PEER"); way != "" {
		for wait := waitBy(t, way, 3); ; signal(t, 4) {
			wait()
		}
	}
}
