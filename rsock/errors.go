package rsock

import (
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"

	"github.com/goverbs/verbs/uverbs"
)

// network is what connections call themselves.
const network = "rdma"

// wrap makes an error of a call look as those of other connections do.
func (c *Conn) wrap(op string, err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return &net.OpError{Op: op, Net: network, Source: c.local, Addr: c.remote, Err: err}
}

// resetError is a connection that ended without the peer's saying so. It
// matches ECONNRESET, or ETIMEDOUT if the peer does not answer, and the cause.
type resetError struct{ cause error }

func (e *resetError) errno() syscall.Errno {
	if errors.Is(e.cause, uverbs.WCRetryExcErr) {
		return syscall.ETIMEDOUT
	}
	return syscall.ECONNRESET
}

func (e *resetError) Error() string   { return fmt.Sprintf("%v: %v", e.errno(), e.cause) }
func (e *resetError) Unwrap() []error { return []error{e.errno(), e.cause} }
func (e *resetError) Timeout() bool   { return e.errno().Timeout() }
