package rconn

import (
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrBroken is returned when a request has failed before, which ends the connection,
	// and the peer has not disconnected yet. The error includes the request's.
	ErrBroken = errors.New("a failed request has broken the connection")
	// ErrAccess is returned for an operation that a region, local or remote, was not
	// made for. Nothing was posted.
	ErrAccess = errors.New("region does not allow it")
	// ErrForeign is returned for a region of another protection domain than the
	// connection's, or a window of another connection.
	ErrForeign = errors.New("region is of another protection domain")
	// ErrAdvert is returned for a message that is not an advertisement, or a damaged one.
	ErrAdvert = errors.New("no valid advertisement")
	// ErrNotExpected is returned by AwaitAdvert when no receive for an advertisement is
	// posted: none could ever come.
	ErrNotExpected = errors.New("no receive for an advertisement is posted")
)

// fail wraps err, the error of an operation of the connection.
func (c *Conn) fail(op string, err error) error {
	verb, object := sys.SplitOp(op, c.RemoteAddr().String())
	e := &verbs.Error{Op: verb, Object: object, Device: c.ep.PD.Context().Device().Name, Err: err}
	if c.iwarp && errors.Is(err, verbs.ErrOpcode) {
		e.Hint = "iWARP devices have no immediates, atomics, windows and flushes"
	}
	return e
}
