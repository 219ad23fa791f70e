package host

import (
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
)

// softEvents is an [EventFile] of this process. It waits for channels.
type softEvents struct {
	openFD
	ready  chan struct{} // has a token when the file has become readable or failed
	wake   chan struct{} // has a token when the current Sleep, or the next one, must end
	closed chan struct{} // closed by Close
	stop   func()        // ends the calls of changed
	timer  *time.Timer   // nil before the first Sleep with a limit
}

func newSoftEvents(fd int) (EventFile, error) {
	file := Get(fd)
	if file == nil {
		return nil, syscall.EBADF
	}
	v := &softEvents{ready: make(chan struct{}, 1), wake: make(chan struct{}, 1), closed: make(chan struct{})}
	v.init(fd)
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

// take takes the token of c, and reports whether there was one.
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
		if err := try(v, op); err != syscall.EAGAIN {
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
			return Ended(ctx)
		case <-late:
			return os.ErrDeadlineExceeded
		}
	}
}

func (v *softEvents) Wake()                    { put(v.wake) }
func (*softEvents) Relay()                     {}
func (*softEvents) Replace(func() error) error { return errors.ErrUnsupported }

func (v *softEvents) Close() error {
	if !v.end() {
		return os.ErrClosed
	}
	close(v.closed)
	v.stop()
	v.Release()
	return nil
}
