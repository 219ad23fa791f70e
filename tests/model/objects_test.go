package model

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// objectCalls create, change and close objects. Sometimes their arguments exceed the limits
// of the device or are invalid.
var objectCalls = []func(*state){
	func(w *state) {
		pd, err := w.context().AllocPD()
		checkCreated(w, pd, err, false, "PD", w.ctx)
	},
	func(w *state) {
		ch, err := w.context().CreateCompChannel()
		checkCreated(w, ch, err, false, "completion channel", w.ctx)
	},
	func(w *state) {
		opt, parents := uverbs.CQOptions{Depth: 1 + w.choose(200)}, []*node{w.ctx}
		if n, ch, ok := pick[*uverbs.CompChannel](w); ok && w.choose(2) == 0 {
			opt.Channel, parents = ch, append(parents, n)
		}
		bad := true
		switch w.choose(8) {
		case 0:
			opt.Depth = 0
		case 1:
			opt.Depth = -5
		case 2:
			opt.Depth = 1 << 30
		case 3:
			opt.Vector = 1 << 20
		default:
			bad = false
		}
		cq, err := w.context().CreateCQ(opt)
		checkCreated(w, cq, err, bad, "CQ", parents...)
	},
	func(w *state) {
		n, pd, ok := pick[*uverbs.PD](w)
		if !ok {
			return
		}
		size, access, bad := 1+w.choose(256)*37, verbs.AccessLocalWrite, true
		switch w.choose(8) {
		case 0:
			size = 0
		case 1:
			size = -1
		case 2:
			access = verbs.AccessRemoteWrite // needs local write
		default:
			bad = false
		}
		mr, err := pd.AllocMR(size, access, uverbs.MROptions{})
		if err == nil && mr.Len() != size {
			w.fail("an MR of %d bytes, not %d", mr.Len(), size)
		}
		checkCreated(w, mr, err, bad, "MR", n)
	},
	func(w *state) {
		n, pd, ok := pick[*uverbs.PD](w)
		if !ok || !w.srqs {
			return
		}
		opt, bad := uverbs.SRQOptions{MaxWR: 1 + w.choose(100), MaxSGE: 1 + w.choose(4)}, true
		switch w.choose(6) {
		case 0:
			opt.MaxWR = 1 << 30
		case 1:
			opt.MaxSGE = 1 << 10
		default:
			bad = false
		}
		srq, err := pd.CreateSRQ(opt)
		checkCreated(w, srq, err, bad, "SRQ", n)
	},
	func(w *state) {
		n, pd, ok := pick[*uverbs.PD](w)
		a, sendCQ, okA := pick[*uverbs.CQ](w)
		b, recvCQ, okB := pick[*uverbs.CQ](w)
		if !ok || !okA || !okB {
			return
		}
		opt := uverbs.QPOptions{SendCQ: sendCQ, RecvCQ: recvCQ, Cap: verbs.QPCap{
			MaxSendWR: 1 + w.choose(64), MaxRecvWR: 1 + w.choose(64), MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: w.choose(64),
		}}
		parents, bad := []*node{n, a, b}, true
		if a == b {
			parents = parents[:2]
		}
		if s, srq, ok := pick[*uverbs.SRQ](w); ok && w.choose(3) == 0 {
			opt.SRQ, opt.Cap.MaxRecvWR, opt.Cap.MaxRecvSGE = srq, 0, 0
			parents = append(parents, s)
		}
		switch w.choose(8) {
		case 0:
			opt.Cap.MaxSendWR = 1 << 30
		case 1:
			opt.Cap.MaxSendSGE = 1 << 10
		case 2:
			opt.SendCQ = nil
		default:
			bad = false
		}
		qp, err := pd.CreateQP(opt)
		checkCreated(w, qp, err, bad, "QP", parents...)
	},
	func(w *state) { // the driver may refuse to resize, unless the CQ is closed
		n, cq, ok := pick[*uverbs.CQ](w)
		if !ok {
			return
		}
		depth := 1 + w.choose(256)
		err := cq.Resize(depth)
		switch {
		case n.closed || err == nil:
			w.checkCall(err, closedOf(n), "resize %s to %d", n.what, depth)
		default:
			w.checkCall(err, []error{errUnsupported}, "resize %s to %d", n.what, depth)
		}
	},
	func(w *state) {
		n, srq, ok := pick[*uverbs.SRQ](w)
		if ok {
			got, err := srq.Query()
			if w.checkCall(err, closedOf(n), "query %s", n.what) && got.MaxWR == 0 {
				w.fail("%s holds nothing", n.what)
			}
		}
	},
	func(w *state) {
		n, qp, ok := pick[*uverbs.QP](w)
		if ok {
			got, err := qp.Query()
			if w.checkCall(err, closedOf(n), "query %s", n.what) && got.State > verbs.StateInit {
				w.fail("%s is %v", n.what, got.State)
			}
		}
	},
	func(w *state) { // post to a QP that has not been started
		n, qp, ok := pick[*uverbs.QP](w)
		if !ok {
			return
		}
		posted, err := qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend})
		if (posted == 1) != (err == nil) {
			w.fail("%s posted %d: %v", n.what, posted, err)
		}
		want := append(closedOf(n), verbs.ErrState)
		if w.keeps && !n.closed {
			want = []error{nil, verbs.ErrQueueFull}
		}
		w.checkCall(err, want, "post send to %s", n.what)
	},
	closeAny, closeAny, closeAny,
}

// closeAny closes any object, which may be closed already.
func closeAny(w *state) {
	if len(w.nodes) > 0 {
		w.close(w.nodes[w.choose(len(w.nodes))])
	}
}
