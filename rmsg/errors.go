package rmsg

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

// Errors of operations and connections. Further ones are [verbs.ErrDisconnected] if the peer closed
// its connection or died, a [*cm.RejectedError] if it rejected the connection, and io.EOF if it
// called Disconnect.
var (
	// ErrWouldBlock is returned by Post; Writable is called when there is room.
	ErrWouldBlock = fmt.Errorf("send queue is full: %w", syscall.EAGAIN)
	// ErrNotConnected is returned by Alloc and Post of a connection that connects.
	ErrNotConnected = fmt.Errorf("not established yet: %w", syscall.ENOTCONN)
	// ErrTooLarge is returned for a message above the limit of the peer or of this side.
	ErrTooLarge = fmt.Errorf("message is too large: %w", syscall.EMSGSIZE)
	// ErrBuffer is returned for a buffer that is queued, freed, received, or another's.
	ErrBuffer = errors.New("buffer cannot be used now")
	// ErrProtocol is returned when the peer violates the protocol.
	ErrProtocol = errors.New("peer violated the protocol")
	// ErrUnreadable is returned when an announcement is wrong, or the peer is terminating.
	ErrUnreadable = errors.New("announced message cannot be read")
	// ErrVersion is returned when the peer has only other versions of the protocol.
	ErrVersion = fmt.Errorf("no protocol version in common: %w", errors.ErrUnsupported)
	// ErrDispatching is returned by Dispatch and Run while another of these calls runs.
	ErrDispatching = errors.New("the loop is already being dispatched")
	// ErrNotRunning is added to errors of calls that nothing ran the loop for.
	ErrNotRunning = errors.New("nothing runs the loop: call Loop.Run")
	// ErrTimeout is returned when a handshake, or a Disconnect, took too long.
	ErrTimeout = fmt.Errorf("peer did not answer in time: %w", syscall.ETIMEDOUT)
)

func protocol(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

func fail(op, object string, err error) error {
	if err == nil {
		return nil
	}
	verb, object := sys.SplitOp(op, object)
	if e, ok := err.(*verbs.Error); ok && e.Op == verb && e.Object == object {
		return err // it has the same operation and address
	}
	e := &verbs.Error{Op: verb, Object: object, Err: err}
	switch {
	case errors.Is(err, ErrDispatching):
		e.Hint = "a callback must not wait: use Dialer.Connect, Post, Disconnect"
	case errors.Is(err, syscall.ENOMEM):
		e.Hint = "lower Credits, Eager, Window"
	}
	return e
}
