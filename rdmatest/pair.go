package rdmatest

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

// Endpoint is one of the two that NewPair connects.
type Endpoint struct {
	PD     *uverbs.PD
	SendCQ *uverbs.CQ
	RecvCQ *uverbs.CQ
	SRQ    *uverbs.SRQ // nil unless PairOptions.SRQ is set
	QP     *uverbs.QP
	MR     *uverbs.MR
	Peer   verbs.UDAddr // the other endpoint, on UD
}

// PostRecv posts receives to the SRQ, if there is one, or else to the QP.
func (e *Endpoint) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	if e.SRQ != nil {
		return e.SRQ.PostRecv(wrs...)
	}
	return e.QP.PostRecv(wrs...)
}

// PairOptions describe what NewPair makes. The zero value is usable.
type PairOptions struct {
	Type   verbs.QPType // RC if zero
	Cap    verbs.QPCap
	Memory int          // of each MR; 64 KiB if zero
	Access verbs.Access // of each MR; all that the device supports if zero
	Events bool
	All    bool // SignalAll
	SRQ    bool
	OneCQ  bool                  // for both queues of an endpoint
	Depth  int                   // of each CQ; enough for all requests if zero
	RC     uverbs.ConnectOptions // Access is all that the device supports if zero
}

// QKey is the Q_Key of UD pairs.
const QKey = endpoint.QKey

// NewPair makes two QPs, of one device or of two, connected to each other, which are closed when
// the test ends. On iWARP only the connection manager can do that, and only a sends first.
func NewPair(t testing.TB, ctxA, ctxB *uverbs.Context, opt PairOptions) (a, b *Endpoint) {
	t.Helper()
	open := func(dev *uverbs.Context, psn uint32) *endpoint.Local {
		return made(endpoint.New(endpoint.Port{Dev: dev}, endpoint.Options{
			Type: opt.Type, Cap: opt.Cap, Memory: opt.Memory, Access: opt.Access, Events: opt.Events, SignalAll: opt.All,
			SRQ: opt.SRQ, OneCQ: opt.OneCQ, Depth: opt.Depth, PSN: psn, RC: opt.RC,
		}))(t)
	}
	x, y := open(ctxA, 0x123456), open(ctxB, 0xfffff0) // y's PSNs wrap
	check(t, endpoint.Join(t.Context(), x, y))
	return newEndpoint(x), newEndpoint(y)
}

func newEndpoint(l *endpoint.Local) *Endpoint {
	return &Endpoint{l.PD, l.SendCQ, l.RecvCQ, l.SRQ, l.QP, l.MR, l.To}
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
