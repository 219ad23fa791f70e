package rsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/goverbs/verbs"
)

// network is the name of the RDMA network, as in [net.Addr].
const network = "rdma"

// wrap returns the error of a call as a [net.OpError], and an errno in it as an [os.SyscallError],
// as package net does: programs look for both, some without errors.As.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok {
		err = &os.SyscallError{Syscall: callOf(op), Err: err}
	}
	return &net.OpError{Op: op, Net: network, Source: c.localAddr, Addr: c.remoteAddr, Err: err}
}

// callOf returns the system call that package net names in the errors of an operation.
func callOf(op string) string {
	switch op {
	case "dial":
		return "connect"
	case "listen":
		return "bind"
	case "writeto":
		return "read"
	case "readfrom":
		return "write"
	case "close":
		return "shutdown"
	}
	return op
}

// opError returns an error that does not belong to a Conn as a [net.OpError].
func opError(op string, source, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: &opCause{op, err, addr}}
}

type opCause struct {
	op   string
	err  error
	addr net.Addr
}

// Error omits the operation and the address, which the net.OpError around it has.
func (c *opCause) Error() string {
	e, ok := c.err.(*verbs.Error)
	if !ok || c.addr == nil || e.Object != c.addr.String() {
		return c.err.Error()
	}
	if e.Hint != "" {
		return fmt.Sprintf("%v (%s)", e.Err, e.Hint)
	}
	return e.Err.Error()
}

func (c *opCause) Unwrap() error { return c.err }

// As finds an [os.SyscallError] where package net has one, beside the cause that the text states.
func (c *opCause) As(target any) bool {
	t, ok := target.(**os.SyscallError)
	errno, is := errors.AsType[syscall.Errno](c.err)
	if !ok || !is {
		return false
	}
	*t = &os.SyscallError{Syscall: callOf(c.op), Err: errno}
	return true
}

// Temporary reports true for timeouts, as in package net.
func (c *opCause) Temporary() bool { return c.Timeout() }

func (c *opCause) Timeout() bool {
	return errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, os.ErrDeadlineExceeded) || errors.Is(c.err, syscall.ETIMEDOUT)
}

// resetError is the error of a connection that ended without an orderly shutdown. It
// matches ECONNRESET, or ETIMEDOUT if the peer does not answer, and the cause.
type resetError struct{ cause error }

func (e *resetError) errno() syscall.Errno {
	if errors.Is(e.cause, verbs.WCRetryExcErr) {
		return syscall.ETIMEDOUT
	}
	return syscall.ECONNRESET
}

func (e *resetError) Error() string   { return fmt.Sprintf("%v: %v", e.errno(), e.cause) }
func (e *resetError) Unwrap() []error { return []error{e.errno(), e.cause} }
func (e *resetError) Timeout() bool   { return e.errno().Timeout() }
