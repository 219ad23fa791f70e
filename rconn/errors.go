package rconn

import (
	"errors"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrBroken is returned after a request has failed, whose error it wraps.
	ErrBroken = errors.New("the connection broke when a request failed")
	// ErrAccess is returned for an operation that the access of a region does not allow.
	ErrAccess = errors.New("the region's access does not allow this")
	// ErrForeign is returned for a region of another domain, or another Conn's window.
	ErrForeign = errors.New("region is of another protection domain")
	// ErrAdvert is returned for a message that is no valid advertisement.
	ErrAdvert = errors.New("no valid advertisement")
	// ErrNotExpected is returned by AwaitAdvert when no receive for one is posted.
	ErrNotExpected = errors.New("no receive for an advertisement is posted")
)

// fail wraps err, the error of an operation of the connection, unless it is nil.
func (c *Conn) fail(op string, err error) error {
	if err == nil {
		return nil
	}
	verb, object := sys.SplitOp(op, c.RemoteAddr().String())
	e := &verbs.Error{Op: verb, Object: object, Device: c.ep.PD.Context().Device().Name, Err: err}
	if errors.Is(err, verbs.ErrOpcode) {
		e.Hint = "not all devices have immediates, atomics, windows and flushes: see uverbs.Context.Probe"
	}
	return e
}
