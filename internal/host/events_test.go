//go:build linux && !nordma

package host

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// TestNotPolled: a file that the netpoller does not take is refused, as nothing would wait for it.
func TestNotPolled(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/regular")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := netpolled(file); !errors.Is(err, os.ErrNoDeadline) {
		t.Errorf("a regular file: %v", err)
	}
}

// pipe returns an EventFile and the file descriptor that its events are written to.
func pipe(t *testing.T) (*kernelEvents, int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	f, err := NewEventFile(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Close()
		Close(fds[1])
	})
	return f.(*kernelEvents), fds[1]
}

// into returns an op that reads into b.
func into(b []byte) func(fd int) error {
	return func(fd int) error {
		_, err := Read(fd, b)
		return err
	}
}

// TestSleepEnds ends sleeps by context, time, Wake and Close, at once and later, alone and
// while another one waits in the kernel.
func TestSleepEnds(t *testing.T) {
	t.Run("alone", testSleepEnds)
	t.Run("beside another", func(t *testing.T) {
		sleepOn(t)
		testSleepEnds(t)
	})
}

// sleepOn starts a Sleep that lasts until the test ends, in the kernel at first.
func sleepOn(t *testing.T) *kernelEvents {
	f, _ := pipe(t)
	ended := make(chan error)
	go func() { ended <- f.Sleep(context.Background(), time.Time{}, into(make([]byte, 8))) }()
	t.Cleanup(func() {
		f.Close()
		if err := <-ended; err != verbs.ErrClosed {
			t.Error(err)
		}
	})
	waitUntil(t, f, inKernel)
	return f
}

func waitUntil(t *testing.T, f *kernelEvents, s sleepState) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		is := f.state.Load()
		if is == s {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("it waits at %v, not %v", is, s)
		}
	}
}

func testSleepEnds(t *testing.T) {
	op := into(make([]byte, 8))
	for _, after := range []time.Duration{0, maxKernelWait / 2, 4 * maxKernelWait} {
		f, w := pipe(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		sleep := func(name string, ctx context.Context, until time.Time, want error, do func()) {
			t.Helper()
			begin := time.Now()
			defer time.AfterFunc(after, do).Stop()
			if err := f.Sleep(ctx, until, op); !errors.Is(err, want) {
				t.Errorf("%s after %v: %v", name, after, err)
			}
			if took := time.Since(begin); took < after-time.Millisecond || took > after+time.Second {
				t.Errorf("%s after %v: took %v", name, after, took)
			}
		}
		sleep("context", ctx, time.Time{}, context.DeadlineExceeded, func() {})
		sleep("time", t.Context(), time.Now().Add(after), os.ErrDeadlineExceeded, func() {})
		sleep("wake", t.Context(), time.Time{}, nil, f.Wake)
		sleep("event", t.Context(), time.Time{}, nil, func() { unix.Write(w, make([]byte, 8)) })
		sleep("close", t.Context(), time.Time{}, verbs.ErrClosed, func() { f.Close() })
		after = 0
		sleep("closed", t.Context(), time.Time{}, verbs.ErrClosed, func() {})
	}
}

// TestWakeWhileReadable wakes a Sleep whose file is always readable, although op returns
// EAGAIN.
func TestWakeWhileReadable(t *testing.T) {
	f, w := pipe(t)
	unix.Write(w, make([]byte, 8))
	time.AfterFunc(maxKernelWait/2, f.Wake)
	late := time.AfterFunc(10*time.Second, func() {
		t.Error("it sleeps on")
		f.Close()
	})
	defer late.Stop()
	if err := f.Sleep(t.Context(), time.Time{}, func(int) error { return unix.EAGAIN }); err != nil {
		t.Error(err)
	}
}

// TestMakeWay checks that a long Sleep in the kernel makes way for one that waits often.
func TestMakeWay(t *testing.T) {
	long := sleepOn(t)
	f, w := pipe(t)
	op := into(make([]byte, 8))
	sleep := func() {
		unix.Write(w, make([]byte, 8))
		if err := f.Sleep(t.Context(), time.Time{}, op); err != nil {
			t.Fatal(err)
		}
	}
	sleep() // finds the other in the kernel
	polling.mu.Lock()
	polling.since = polling.since.Add(-2 * maxKernelWait)
	polling.mu.Unlock()
	sleep() // finds the same one, too long after
	waitUntil(t, long, inNetpoller)
	done := make(chan error)
	go func() { done <- f.Sleep(t.Context(), time.Time{}, op) }()
	waitUntil(t, f, inKernel)
	f.Wake()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestEventBeforeEnd reads a pending event although the context has ended, or the time has
// passed, and finds none after it.
func TestEventBeforeEnd(t *testing.T) {
	f, w := pipe(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, end := range []struct {
		ctx   context.Context
		until time.Time
		err   error
	}{{over, time.Time{}, context.Canceled}, {t.Context(), time.Unix(1, 0), os.ErrDeadlineExceeded}} {
		unix.Write(w, make([]byte, 8))
		for _, want := range []error{nil, end.err} {
			if err := f.Sleep(end.ctx, end.until, into(make([]byte, 8))); err != want {
				t.Errorf("%v, not %v", err, want)
			}
		}
	}
}

// TestWakeBeforeSleep ends the next sleep, and only that.
func TestWakeBeforeSleep(t *testing.T) {
	f, w := pipe(t)
	b := make([]byte, 8)
	for range 100 {
		f.Wake()
		f.Wake()
		if err := f.Sleep(t.Context(), time.Time{}, into(b)); err != nil || b[0] != 0 {
			t.Fatal(err, b)
		}
		unix.Write(w, []byte("12345678"))
		if err := f.Sleep(t.Context(), time.Time{}, into(b)); err != nil || b[0] != '1' {
			t.Fatal(err, b)
		}
		b[0] = 0
	}
}

// TestWakeItself lets op wake the Sleep that calls it, as it does when it has an event for the
// goroutine that sleeps: no other Sleep is woken, and the kernel is not asked to.
func TestWakeItself(t *testing.T) {
	f, w := pipe(t)
	for range 3 {
		unix.Write(w, make([]byte, 8))
		err := f.Sleep(t.Context(), time.Time{}, func(fd int) error {
			f.Wake()
			return into(make([]byte, 8))(fd)
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Read(polling.wakeFD, make([]byte, 8)); err != unix.EAGAIN {
			t.Errorf("the eventfd has been written: %v", err)
		}
		if err := f.Sleep(t.Context(), time.Now().Add(time.Millisecond), into(make([]byte, 8))); err != os.ErrDeadlineExceeded {
			t.Errorf("the next Sleep: %v", err)
		}
	}
	unix.Write(w, make([]byte, 8))
	err := f.Sleep(t.Context(), time.Time{}, func(int) error {
		f.Wake()
		return unix.EAGAIN
	})
	if err != nil {
		t.Error(err)
	}
}

// TestLateWake makes the eventfd readable for a Sleep that has ended. The next one sleeps on.
func TestLateWake(t *testing.T) {
	f, _ := pipe(t)
	for _, wait := range []time.Duration{10 * time.Millisecond, 2 * maxKernelWait} {
		ended := make(chan error)
		until := time.Now().Add(wait)
		go func() { ended <- f.Sleep(t.Context(), until, into(make([]byte, 8))) }()
		waitUntil(t, f, inKernel)
		polling.wake()
		if err := <-ended; err != os.ErrDeadlineExceeded || time.Now().Before(until) {
			t.Errorf("%v, %v early", err, time.Until(until))
		}
	}
}

// TestManyFiles sleeps on more files than may wait in the kernel: each gets its
// events, and sleeping allocates nothing.
func TestManyFiles(t *testing.T) {
	const events = 200
	var wg sync.WaitGroup
	for range 8 {
		f, w := pipe(t)
		turn := make(chan struct{})
		wg.Go(func() {
			for range events {
				if _, err := unix.Write(w, []byte("event...")); err != nil {
					t.Error(err)
				}
				<-turn
			}
		})
		wg.Go(func() {
			n := 0
			op := func(fd int) (err error) {
				n, err = unix.Read(fd, make([]byte, 8))
				return err
			}
			for range events {
				if err := f.Sleep(t.Context(), time.Time{}, op); n != 8 || err != nil {
					t.Error(n, err)
				}
				turn <- struct{}{}
			}
		})
	}
	wg.Wait()
	f, w := pipe(t)
	b := make([]byte, 8)
	op := into(b)
	if n := testing.AllocsPerRun(100, func() {
		unix.Write(w, b)
		f.Sleep(t.Context(), time.Time{}, op)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
