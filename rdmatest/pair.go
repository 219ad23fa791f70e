package rdmatest

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

// Side is one end of a [NewPair].
type Side struct {
	PD     *uverbs.PD
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ
	SRQ    *uverbs.SRQ // nil unless PairOptions.SRQ is set
	QP     *uverbs.QP
	MR     *uverbs.MR
	Peer   verbs.UDAddr // the other side, on UD
}

// PostRecv posts receives to the SRQ, if there is one, or else to the QP.
func (s *Side) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	if s.SRQ != nil {
		return s.SRQ.PostRecv(wrs...)
	}
	return s.QP.PostRecv(wrs...)
}

// PairOptions describe what NewPair makes. The zero value is usable.
type PairOptions struct {
	Type   verbs.QPType // RC if zero
	Cap    verbs.QPCap
	Memory int          // of each MR; 64 KiB if zero
	Access verbs.Access // of each MR; AccessAll if zero
	Events bool
	All    bool // SignalAll
	SRQ    bool
	OneCQ  bool                  // for both queues of a side
	Depth  int                   // of each CQ; enough for all requests if zero
	RC     uverbs.ConnectOptions // Access is AccessAll if zero
}

// QKey is the Q_Key of UD pairs.
const QKey = endpoint.QKey

// NewPair makes two QPs, of one device or of two, connected to each other, which are closed when
// the test ends. On iWARP only the connection manager can do that, and only a sends first.
func NewPair(t testing.TB, ctxA, ctxB *uverbs.Context, opt PairOptions) (a, b *Side) {
	t.Helper()
	open := func(dev *uverbs.Context, psn uint32) *endpoint.Local {
		return made(endpoint.New(endpoint.Port{Dev: dev}, endpoint.Options{
			Type: opt.Type, Cap: opt.Cap, Memory: opt.Memory, Access: opt.Access, Events: opt.Events, SignalAll: opt.All,
			SRQ: opt.SRQ, OneCQ: opt.OneCQ, Depth: opt.Depth, PSN: psn, RC: opt.RC,
		}))(t)
	}
	x, y := open(ctxA, 0x123456), open(ctxB, 0xfffff0) // y's PSNs wrap
	check(t, errors.Join(endpoint.Both(func(active bool, swap endpoint.Swap) error {
		if active {
			return x.Connect(t.Context(), true, swap)
		}
		return y.Connect(t.Context(), false, swap)
	})))
	return newSide(x), newSide(y)
}

func newSide(l *endpoint.Local) *Side {
	return &Side{l.PD, l.SendCQ, l.RecvCQ, l.SRQ, l.QP, l.MR, l.To}
}

// check ends the test if one of the errors is not nil.
func check(t testing.TB, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// made returns a function that closes v when the test ends, or ends the test now if err is not nil.
func made[T interface{ Close() error }](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		check(t, err)
		closeLater(t, v)
		return v
	}
}
