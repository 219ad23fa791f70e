package rsock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/goverbs/verbs"
)

// network is the name of the network of connections.
const network = "rdma"

// wrap makes an error of a call one of package net.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.localAddr, Addr: c.remoteAddr, Err: err}
}

// opError makes an error that is not of a connection one of package net.
func opError(op string, source, addr net.Addr, err error) error {
	return &net.OpError{Op: op, Net: network, Source: source, Addr: addr, Err: &opCause{err, addr}}
}

// opCause is why an operation on addr failed.
type opCause struct {
	err  error
	addr net.Addr
}

// Error leaves out what the net.OpError around it says.
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

func (c *opCause) Timeout() bool {
	return errors.Is(c.err, context.DeadlineExceeded) || errors.Is(c.err, syscall.ETIMEDOUT)
}

// resetError is the error of a connection that the peer did not end in order. It
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
