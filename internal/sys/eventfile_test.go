package sys

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

// pipe is an event file and where its events come from.
func pipe(t *testing.T) (*EventFile, int) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	e, err := NewEventFile(fds[0], "pipe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		unix.Close(fds[1])
	})
	return e, fds[1]
}

// TestWaitEnds has waits end by context, deadline and Close, both while they
// are brief and when they are not any more.
func TestWaitEnds(t *testing.T) {
	for _, after := range []time.Duration{0, briefly / 2, 4 * briefly} {
		e, _ := pipe(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		defer cancel()
		var b [8]byte
		if _, err := e.Read(ctx, b[:]); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("context of %v: %v", after, err)
		}
		if err := e.SetDeadline(time.Now().Add(after)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.ReadPlain(b[:]); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("deadline of %v: %v", after, err)
		}
		if err := e.SetDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(after, func() { e.Close() })
		if _, err := e.ReadPlain(b[:]); err != verbs.ErrClosed {
			t.Errorf("closed after %v: %v", after, err)
		}
		e, _ = pipe(t)
		time.AfterFunc(after, func() { e.Close() })
		if _, err := e.Read(t.Context(), b[:]); err != verbs.ErrClosed {
			t.Errorf("closed after %v: %v", after, err)
		}
	}
}

// TestManyWait has more files waited for than may be briefly: each gets its
// events, and waiting allocates nothing.
func TestManyWait(t *testing.T) {
	const events = 200
	var wg sync.WaitGroup
	for range 8 {
		e, w := pipe(t)
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
			b := make([]byte, 8)
			for range events {
				if n, err := e.ReadPlain(b); n != 8 || err != nil {
					t.Error(n, err)
				}
				turn <- struct{}{}
			}
		})
	}
	wg.Wait()
	e, w := pipe(t)
	b := make([]byte, 8)
	if n := testing.AllocsPerRun(100, func() {
		unix.Write(w, b)
		e.ReadPlain(b)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
