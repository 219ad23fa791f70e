package provider

import "github.com/goverbs/verbs"

// OpPostSRQ is the Op of a [verbs.PostError] of an SRQ.
const OpPostSRQ = "post SRQ recv"

// SendInline is the flag that drivers set in requests with inline data (enum ib_send_flags).
const SendInline verbs.SendFlags = 1 << 3

// Requests is the common part of receive queues and SRQs, which embed it, and of [Sends].
type Requests struct {
	Gate
	Op         string // for errors
	Num        uint32 // of the QP or SRQ
	MaxSGE     int
	MaxMessage uint64 // bytes

	flushed int // completions of AddFlushed that have not been polled, guarded by the CQ's addedMu
}

func (q *Requests) init(op string, dev *Device, num uint32, maxSGE int) {
	q.Op, q.Num, q.MaxSGE, q.MaxMessage = op, num, maxSGE, uint64(uint32(dev.Port.MaxMessage))
}

// InitReceives sets the fields for the receive queue of a QP.
func (q *Requests) InitReceives(dev *Device, init *QPInit, info QPInfo) {
	q.init("post recv", dev, info.QPNum, info.Cap.MaxRecvSGE)
	q.SingleThreaded = init.SingleThreaded
}

// InitShared sets the fields for an SRQ, which always accepts receives.
func (q *Requests) InitShared(dev *Device, num uint32, maxSGE int) {
	q.init(OpPostSRQ, dev, num, maxSGE)
	q.State = verbs.StateInit
}

// SetLimit implements [RecvQueue] for SRQs whose driver has no part in it.
func (q *Requests) SetLimit(_ int, set func(UHW) error) error { return set(UHW{}) }

// Resize implements [Resizer]: it lets the kernel refuse.
func (q *Requests) Resize(size int, resize func(int, UHW) error) error { return resize(size, UHW{}) }

// MaxOneSGE returns the most bytes of a request with one SGE, 0 if requests have none.
func (q *Requests) MaxOneSGE() uint32 {
	if q.MaxSGE <= 0 {
		return 0
	}
	return uint32(q.MaxMessage)
}

// Refused returns the error for request i, whose ID is id, that was not posted because of err.
//
//go:noinline
func (q *Requests) Refused(i int, id uint64, err error) error {
	if err == verbs.ErrQueueFull {
		return err
	}
	return &verbs.PostError{Op: q.Op, QPNum: q.Num, Index: i, ID: id, Err: err}
}

// Sends is the common part of send queues, which embed it.
type Sends struct {
	Requests
	Type      verbs.QPType
	MaxInline int // bytes
	SignalAll bool
}

// InitSends sets the fields for the send queue of a QP.
func (q *Sends) InitSends(dev *Device, init *QPInit, info QPInfo) {
	q.init("post send", dev, info.QPNum, info.Cap.MaxSendSGE)
	q.SingleThreaded = init.SingleThreaded
	q.Type, q.MaxInline, q.SignalAll = init.Type, info.Cap.MaxInline, init.SignalAll
	if init.Type == verbs.UD { // kernels drop longer datagrams without an error
		q.MaxMessage = uint64(dev.Port.ActiveMTU.Bytes())
	}
}

// CopyInline copies a request's inline data to dst, which has room for MaxInline bytes, and
// returns how many they are. takes reports whether the operation takes inline data. If the caller's
// memory is gone, it unlocks the queue and panics.
func (q *Sends) CopyInline(dst []byte, wr *verbs.SendWR, takes bool) (n int, err error) {
	switch {
	case len(wr.SGL) > 0:
		return 0, verbs.ErrInlineSGL
	case !takes:
		return 0, verbs.ErrInlineOp
	case len(wr.Inline) > len(dst):
		return 0, verbs.ErrInlineTooLong
	}
	defer q.UnlockIfPanicking()
	n = copy(dst, wr.Inline)
	for _, b := range Args(wr).InlineList {
		if len(b) > len(dst)-n {
			return 0, verbs.ErrInlineTooLong
		}
		n += copy(dst[n:], b)
	}
	if uint64(n) > q.MaxMessage {
		return 0, verbs.ErrMessageTooLong
	}
	return n, nil
}

// Args returns the arguments of a request, or zeros if it has none.
func Args(wr *verbs.SendWR) *verbs.SendArgs {
	if wr.Args != nil {
		return wr.Args
	}
	return &noArgs
}

var noArgs verbs.SendArgs

// HasInline reports whether a request has inline data.
func HasInline(wr *verbs.SendWR) bool { return len(wr.Inline) > 0 || len(Args(wr).InlineList) > 0 }

// RefuseOpcode returns the error for an opcode that a QP does not accept.
func RefuseOpcode(o verbs.Opcode) error {
	if o == 0 {
		return verbs.ErrNoOpcode
	}
	return verbs.ErrOpcode
}

// Refuse returns the error for receive i of wrs, which was not posted to a queue of a size.
func (q *Requests) Refuse(wrs []verbs.RecvWR, i, size int) error {
	sgl, err := wrs[i].SGL, verbs.ErrQueueFull
	switch {
	case size == 0:
		err = verbs.ErrNoRecvRoom
	case q.State == verbs.StateReset:
		err = verbs.ErrState
	case len(sgl) > q.MaxSGE:
		err = verbs.ErrTooManySGEs
	case SumLengths(sgl) > q.MaxMessage:
		err = verbs.ErrMessageTooLong
	}
	return q.Refused(i, wrs[i].ID, err)
}

// SumLengths returns the length of the message that a list holds.
func SumLengths(sgl []verbs.SGE) (n uint64) {
	for i := range sgl {
		n += uint64(sgl[i].Length)
	}
	return n
}
