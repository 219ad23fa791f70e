package host

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// softEvents is an [EventFile] of this process. It waits for channels.
type softEvents struct {
	fd     int
	ready  chan struct{} // has a token when the file has become readable or failed
	wake   chan struct{} // has a token when the current Sleep, or the next one, must end
	closed chan struct{} // closed by close
	stop   func()        // ends the calls of changed
	timer  *time.Timer   // nil before the first Sleep with a limit

	mu    sync.Mutex
	users int // calls of ops, and 1 until close; then the descriptor is closed
}

func newSoftEvents(fd int) (EventFile, error) {
	file := Get(fd)
	if file == nil {
		return nil, syscall.EBADF
	}
	v := &softEvents{fd: fd, ready: make(chan struct{}, 1), wake: make(chan struct{}, 1), closed: make(chan struct{}), users: 1}
	v.stop = file.Watch(func(s State) {
		if s != Idle {
			put(v.ready)
		}
	})
	return v, nil
}

// put puts a token into c, unless there is one.
func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take takes the token of c, and reports whether there was one. A closed channel always has one.
func take(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (v *softEvents) Sleep(ctx context.Context, until time.Time, op func(fd int) error) error {
	if late, err := tryLate(v, ctx, until, op); late {
		return err
	}
	if take(v.wake) {
		return nil
	}
	var late <-chan time.Time
	if !until.IsZero() {
		if limit := time.Until(until); v.timer == nil {
			v.timer = time.NewTimer(limit)
		} else {
			v.timer.Reset(limit)
		}
		defer v.timer.Stop()
		late = v.timer.C
	}
	for {
		if err := v.Try(op); err != syscall.EAGAIN {
			take(v.wake) // op may have called Wake because of an event for this goroutine
			return err
		}
		select {
		case <-v.ready:
		case <-v.wake:
			return nil
		case <-v.closed:
			return verbs.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		case <-late:
			return os.ErrDeadlineExceeded
		}
	}
}

func (v *softEvents) Wake()                    { put(v.wake) }
func (v *softEvents) FD() int                  { return v.fd }
func (*softEvents) Relay()                     {}
func (*softEvents) Replace(func() error) error { return errors.ErrUnsupported }

func (v *softEvents) Try(op func(fd int) error) error {
	v.mu.Lock()
	if take(v.closed) {
		v.mu.Unlock()
		return verbs.ErrClosed
	}
	v.users++
	v.mu.Unlock()
	defer v.release()
	return op(v.fd)
}

// release ends the use of the descriptor.
func (v *softEvents) release() {
	v.mu.Lock()
	v.users--
	last := v.users == 0
	v.mu.Unlock()
	if last {
		Close(v.fd)
	}
}

func (v *softEvents) Close() error {
	v.mu.Lock()
	if take(v.closed) {
		v.mu.Unlock()
		return os.ErrClosed
	}
	close(v.closed)
	v.mu.Unlock()
	v.stop()
	v.release()
	return nil
}
