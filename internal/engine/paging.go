package engine

import (
	"syscall"

	"github.com/goverbs/verbs"
)

// On-demand paging, of device models: pages of a region may be missing (MR.Paged). The QP that needs
// one calls PageFault, and tries again after Resume. Meanwhile
//
//	the requester     sends nothing; answers to READs and atomics that it cannot store are asked for again
//	the responder     answers with RNR NAKs, as without a receive; in the answer to a READ it waits
//
// so a fault holds no memory, whether or not the guest ever resumes the QP.

// PageFault describes an access of a QP to memory that is missing.
type PageFault struct {
	QP        uint32 // number of the QP
	Requester bool   // the QP's own request needs the memory, otherwise a peer's

	// Of memory that a request of the guest names, a send or a receive:
	Request bool
	ID      uint64

	// Of memory that a peer's request names:
	Key    uint32
	Addr   uint64
	Length uint32 // of the whole operation
	Write  bool

	Done   uint32 // bytes of the operation that need no more memory
	Packet uint32 // bytes that are accessed now
}

// same reports whether two faults are of the same operation.
func (f *PageFault) same(g *PageFault) bool {
	return f.Request == g.Request && f.ID == g.ID && f.Key == g.Key
}

// paging is the page fault of a requester or a responder.
type paging struct {
	state pagingState
	fault PageFault
}

type pagingState uint8

const (
	pagingIdle   pagingState = iota
	pagingWaits              // for Resume
	pagingFailed             // there will be no page: the next access of the operation fails
)

func (p *paging) waits() bool { return p.state == pagingWaits }

// missing handles an access to memory that is missing. It reports false if the access fails instead.
func (qp *QP) missing(p *paging, f PageFault) bool {
	switch {
	case qp.init.PageFault == nil,
		// Others than RC cannot ask a peer to wait, so mlx5_ib has paging for their requests at most.
		qp.init.Type == verbs.UC, qp.init.Type == verbs.UD && !f.Requester:
		return false
	case p.waits():
		return true
	case p.state == pagingFailed && p.fault.same(&f):
		*p = paging{}
		return false
	}
	f.QP = qp.num
	*p = paging{state: pagingWaits, fault: f}
	qp.init.PageFault(f)
	return true
}

// Resume continues a QP after a page fault of its requester or its responder. ok reports whether the
// memory is there now; without it the operation fails. Resume fails with EINVAL if there is no such
// fault.
func (d *Device) Resume(qpn uint32, requester, ok bool) error {
	qp := d.qps.get(qpn)
	if qp == nil {
		return syscall.EINVAL
	}
	qp.lock()
	p := &qp.responder.paging
	if requester {
		p = &qp.requester.paging
	}
	if qp.ended || !p.waits() {
		qp.unlock()
		return syscall.EINVAL
	}
	p.state = pagingIdle
	if !ok {
		p.state = pagingFailed
	}
	if requester {
		qp.requester.resumePaging()
	} else {
		qp.responder.continueReply()
	}
	qp.finish()
	qp.unlock()
	d.drain()
	return nil
}

// missing is QP.missing for memory of a request, of which done bytes have been sent or received.
func (q *requester) missing(r *request, done uint32) bool {
	f := PageFault{Requester: true, Request: true, ID: r.id, Done: done, Packet: min(r.length-done, uint32(q.qp.mtu))}
	if !q.qp.missing(&q.paging, f) {
		return false
	}
	// The peer is not asked to answer before Resume.
	q.comp.deadline, q.comp.probe.at, q.comp.probe.timing = 0, 0, false
	return true
}

// resumePaging continues after a page fault. Answers that came meanwhile may have been dropped.
func (q *requester) resumePaging() {
	q.comp.deadline, q.comp.probe.at = 0, 0
	if q.qp.init.Type == verbs.RC && (q.qp.state == verbs.StateRTS || q.qp.state == verbs.StateSQD) {
		q.rewind()
	}
}

// missing is QP.missing for memory that a request of the peer names.
func (r *responder) missing(f PageFault) bool { return r.qp.missing(&r.paging, f) }

// Paged makes the region one whose pages may be missing: an access to one faults.
func (mr *MR) Paged() {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	mr.paged = true
}

// Change calls change while no access to the region is under way, so that it may replace pages of the
// region's memory or, in place, parts of a region of RegisterParts, whose length stays.
func (mr *MR) Change(change func(parts []Part)) {
	mr.mu.Lock()
	defer mr.mu.Unlock()
	change(mr.parts)
}
