package rmsg

import (
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

// Why operations fail and sockets end, beside what package cm says:
// [verbs.ErrDisconnected] for a peer that broke off or died, and a
// [*cm.RejectedError] for one that turned the connection down. A peer that
// disconnected in good order gives io.EOF.
var (
	// ErrWouldBlock is Post to a socket whose send queue is full; Writable is
	// called when there is room. It matches EAGAIN.
	ErrWouldBlock = fmt.Errorf("send queue is full: %w", unix.EAGAIN)
	// ErrNotConnected is Alloc or Post before the socket is established. It
	// matches ENOTCONN.
	ErrNotConnected = fmt.Errorf("not established yet: %w", unix.ENOTCONN)
	// ErrTooLarge is a message above what the peer, or this side, takes. It
	// matches EMSGSIZE.
	ErrTooLarge = fmt.Errorf("message is too large: %w", unix.EMSGSIZE)
	// ErrBuffer is a buffer that is not the program's to use in this way: it is
	// queued, free, of another socket, or holds a received message.
	ErrBuffer = errors.New("buffer is not to be used so now")
	// ErrProtocol is a peer that does not hold to the protocol.
	ErrProtocol = errors.New("peer broke the protocol")
	// ErrUnreadable is a peer whose message cannot be read as it announced it:
	// it lied, or is just dying.
	ErrUnreadable = errors.New("announced message cannot be read")
	// ErrVersion is a peer that speaks no version of the protocol in common. It
	// matches errors.ErrUnsupported.
	ErrVersion = fmt.Errorf("no protocol version in common: %w", errors.ErrUnsupported)
	// ErrDispatching is returned by Dispatch and Run while another is under
	// way, and by whatever takes a context if a callback calls it.
	ErrDispatching = errors.New("loop is being dispatched already")
	// ErrNotRunning is added to the error of a call whose context or timeout
	// ended before anything dispatched.
	ErrNotRunning = errors.New("nothing runs the loop: call Loop.Run")
	// ErrTimeout is a handshake, or a Disconnect, that took too long. It matches
	// ETIMEDOUT.
	ErrTimeout = fmt.Errorf("peer did not answer in time: %w", unix.ETIMEDOUT)
)

func protocol(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

func fail(op, object string, err error) error {
	if err == nil {
		return nil
	}
	verb, object := sys.SplitOp(op, object)
	e := &verbs.Error{Op: verb, Object: object, Err: err}
	switch {
	case errors.Is(err, ErrDispatching):
		e.Hint = "a callback must not wait: use Connect, Post, Disconnect"
	case errors.Is(err, unix.ENOMEM):
		e.Hint = "raise ulimit -l, or lower Credits, Eager, Window"
	}
	return e
}

func isEOF(err error) bool    { return errors.Is(err, io.EOF) }
func isClosed(err error) bool { return errors.Is(err, verbs.ErrClosed) }
