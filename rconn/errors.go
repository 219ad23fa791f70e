package rconn

import (
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrBroken is returned after a request has failed, which breaks the connection,
	// until the peer disconnects. It wraps the error of the request.
	ErrBroken = errors.New("the connection broke when a request failed")
	// ErrAccess is returned for an operation that the access of a local or remote
	// region does not allow. Nothing was posted.
	ErrAccess = errors.New("the region's access does not allow this")
	// ErrForeign is returned for a region of a protection domain other than the
	// connection's, or a window of another connection.
	ErrForeign = errors.New("region is of another protection domain")
	// ErrAdvert is returned for a message that is not an advertisement, or a damaged one.
	ErrAdvert = errors.New("no valid advertisement")
	// ErrNotExpected is returned by AwaitAdvert when no receive for an advertisement
	// is posted, so none can arrive.
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
