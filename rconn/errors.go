package rconn

import (
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrBroken is a connection on which a request has failed, which is the end
	// of it: the error says why that was. The peer has not left yet.
	ErrBroken = errors.New("a failed request has broken the connection")
	// ErrAccess is an operation that a region, local or remote, was not made
	// for. Nothing was posted.
	ErrAccess = errors.New("region does not allow it")
	// ErrForeign is a region of another protection domain than the
	// connection's.
	ErrForeign = errors.New("region is of another protection domain")
	// ErrAdvert is a message that is no advertisement, or a damaged one.
	ErrAdvert = errors.New("no valid advertisement")
	// ErrNotExpected is waiting for an advertisement with no receive for one
	// posted: it could never come.
	ErrNotExpected = errors.New("no receive for an advertisement is posted")
)

// fail wraps err, which came of an operation of the connection.
func (c *Conn) fail(op string, err error) error {
	verb, object := sys.SplitOp(op, c.RemoteAddr().String())
	return &verbs.Error{Op: verb, Object: object, Device: c.ep.PD.Context().Device().Name, Err: err}
}
