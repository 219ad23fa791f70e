package sys

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
)

// plain is the ReadPlain that is under way, kept so that it allocates nothing.
type plain struct {
	b     []byte
	n     int
	err   error
	brief bool // still to be waited so
	read  func(uintptr) bool
}

func (e *EventFile) preparePlain() {
	p := &e.plain
	p.read = func(uintptr) bool {
		if p.brief {
			p.brief = false
			e.waitBriefly(e.expired)
		}
		for {
			if p.n, p.err = unix.Read(e.fd, p.b); p.err != unix.EINTR {
				break
			}
		}
		if p.err == unix.EAGAIN {
			p.err = e.watch.turn(true)
			return p.err != nil
		}
		return true
	}
}

// ReadPlain reads one or more whole events into b. Unlike Read it allocates
// nothing, and it is SetDeadline that ends it, with [os.ErrDeadlineExceeded]. The
// two ways of reading do not mix.
func (e *EventFile) ReadPlain(b []byte) (n int, err error) {
	p := &e.plain
	p.b, p.brief = b, true
	err = e.watch.raw.Read(p.read)
	p.b = nil
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, err
	case err != nil:
		return 0, verbs.ErrClosed
	}
	return max(p.n, 0), p.err
}
