package event

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
)

// virtualFile is the part of a [File] for a file of package virtual. It waits for channels.
type virtualFile struct {
	fd     int
	ready  chan struct{} // has a token when the file has become readable or failed
	wake   chan struct{} // has a token when the current Sleep, or the next one, must end
	closed chan struct{} // closed by close
	stop   func()        // ends the calls of changed
	timer  *time.Timer   // nil before the first Sleep with a limit

	mu    sync.Mutex
	users int // calls of ops, and 1 until close; then the descriptor is closed
}

// newVirtualFile returns a File of a virtual file, which owns fd.
func newVirtualFile(fd int) (*File, error) {
	file := virtual.Get(fd)
	if file == nil {
		return nil, syscall.EBADF
	}
	v := &virtualFile{fd: fd, ready: make(chan struct{}, 1), wake: make(chan struct{}, 1), closed: make(chan struct{}), users: 1}
	v.stop = file.Watch(func(s virtual.State) {
		if s != virtual.Idle {
			put(v.ready)
		}
	})
	return &File{fd: fd, virtual: v}, nil
}

// put puts a token into c, unless there is one.
func put(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// sleep implements [File.Sleep] for a context that has not ended and a time that has not passed.
func (v *virtualFile) sleep(ctx context.Context, until time.Time, op func(fd int) error) error {
	select {
	case <-v.wake:
		return nil
	default:
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
		if err := v.try(op); err != syscall.EAGAIN {
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

// try implements [File.Try].
func (v *virtualFile) try(op func(fd int) error) error {
	v.mu.Lock()
	if v.isClosed() {
		v.mu.Unlock()
		return verbs.ErrClosed
	}
	v.users++
	v.mu.Unlock()
	defer v.release()
	return op(v.fd)
}

func (v *virtualFile) isClosed() bool {
	select {
	case <-v.closed:
		return true
	default:
		return false
	}
}

// release ends the use of the descriptor.
func (v *virtualFile) release() {
	v.mu.Lock()
	v.users--
	last := v.users == 0
	v.mu.Unlock()
	if last {
		unix.Close(v.fd)
	}
}

// close implements [File.Close].
func (v *virtualFile) close() error {
	v.mu.Lock()
	if v.isClosed() {
		v.mu.Unlock()
		return os.ErrClosed
	}
	close(v.closed)
	v.mu.Unlock()
	v.stop()
	v.release()
	return nil
}
