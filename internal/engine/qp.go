package engine

import (
	"math/bits"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/internal/unix"
)

// QP is a queue pair.
type QP struct {
	dev       *Device
	pd        *PD
	num       uint32
	typ       verbs.QPType
	transport roce.Transport
	cap       verbs.QPCap
	sendCQ    *CQ
	recvCQ    *CQ
	srq       *SRQ
	signalAll bool
	event     func(verbs.AsyncEventType)

	mu      sync.Mutex
	state   verbs.QPState
	attr    verbs.QPAttr
	ended   bool
	path    *path // nil before RTR, and for UD
	mtu     int
	timeout time.Duration // 0: none
	groups  int           // multicast groups it is attached to

	batch   *batch // packets to send, while locked
	sent    int    // packets sent since it was locked
	resumed bool   // a work item is queued to resume

	lastMR     *MR // of localMR
	lastRemote *MR // of remoteMR

	sq   sendQueue
	req  requester
	comp completer
	rq   recvQueue
	resp responder

	timerAt time.Duration // when the timer fires at the latest; 0: it is not set
	timer   timer         // of Device.timers, under its lock
}

// QPInit describes a QP.
type QPInit struct {
	Type           verbs.QPType // RC, UC or UD; others fail with EOPNOTSUPP
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ        // may be nil
	Cap            verbs.QPCap // as the kernel's struct ib_qp_cap: without defaults
	SignalAll      bool
	Event          func(verbs.AsyncEventType) // events of the QP
}

// CreateQP makes a QP. It fails with EINVAL if sizes are out of range.
func (pd *PD) CreateQP(init QPInit) (*QP, error) {
	d := pd.dev
	if err := d.usable(); err != nil {
		return nil, err
	}
	qp := &QP{
		dev: d, pd: pd, typ: init.Type, sendCQ: init.SendCQ, recvCQ: init.RecvCQ, srq: init.SRQ,
		signalAll: init.SignalAll, event: init.Event, mtu: verbs.MTU(1).Bytes(),
		attr: verbs.QPAttr{PathMTU: 1},
	}
	switch init.Type {
	case verbs.RC:
		qp.transport = roce.RC
	case verbs.UC:
		qp.transport = roce.UC
	case verbs.UD:
		qp.transport = roce.UD
	default:
		return nil, unix.EOPNOTSUPP
	}
	if init.SendCQ == nil || init.RecvCQ == nil {
		return nil, unix.EINVAL
	}
	if err := checkCap(init.Cap, init.SRQ != nil); err != nil {
		return nil, err
	}
	qp.cap = qp.makeQueues(init.Cap)
	if err := qp.hold(); err != nil {
		return nil, err
	}
	var ok bool
	if qp.num, ok = d.qps.add(qp, minQPNum, maxValue); !ok {
		qp.release()
		return nil, unix.ENOMEM
	}
	return qp, nil
}

// checkCap is rxe_qp_chk_cap.
func checkCap(c verbs.QPCap, srq bool) error {
	invalid := func(n, most int) bool { return n < 0 || n > most }
	if invalid(c.MaxSendWR, maxQPWR) || invalid(c.MaxSendSGE, maxSGE) || invalid(c.MaxInline, maxInline) ||
		!srq && (invalid(c.MaxRecvWR, maxQPWR) || invalid(c.MaxRecvSGE, maxSGE)) {
		return unix.EINVAL
	}
	return nil
}

// makeQueues makes the rings and returns the sizes that they have.
func (qp *QP) makeQueues(c verbs.QPCap) verbs.QPCap {
	data := max(c.MaxSendSGE*sgeSize, c.MaxInline)
	c.MaxSendSGE, c.MaxInline = data/sgeSize, data
	qp.sq.ring = newRing(c.MaxSendWR, sendWQESize+data)
	c.MaxSendWR = qp.sq.ring.Cap()
	qp.sq.makeRequests(c.MaxSendSGE)
	if qp.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
		return c
	}
	qp.rq.ring = newRing(c.MaxRecvWR, recvSize(c.MaxRecvSGE))
	c.MaxRecvWR = qp.rq.ring.Cap()
	return c
}

// hold counts the QP in the objects that it uses.
func (qp *QP) hold() error {
	var held []*useCount
	uses := []*useCount{&qp.pd.use, &qp.sendCQ.use, &qp.recvCQ.use}
	if qp.srq != nil {
		uses = append(uses, &qp.srq.use)
	}
	for _, u := range uses {
		if !u.get() {
			for _, u := range held {
				u.put()
			}
			return unix.EINVAL
		}
		held = append(held, u)
	}
	return nil
}

func (qp *QP) release() {
	qp.pd.use.put()
	qp.sendCQ.use.put()
	qp.recvCQ.use.put()
	if qp.srq != nil {
		qp.srq.use.put()
	}
}

// Destroy ends the QP. It fails with EBUSY while the QP is attached to a multicast group.
// Requests that have not completed never do.
func (qp *QP) Destroy() error {
	qp.lock()
	if qp.ended || qp.groups > 0 {
		err := error(unix.EINVAL)
		if !qp.ended {
			err = unix.EBUSY
		}
		qp.unlock()
		return err
	}
	qp.ended = true
	qp.resp.drop(qp.dev)
	qp.dev.qps.remove(qp.num)
	qp.unlock()
	qp.dev.timers.remove(qp)
	qp.release()
	return nil
}

// Doorbell processes the send queue after requests were added to it, and flushes the
// receive queue of a QP in the error state. It fails with EINVAL in the states before RTS.
func (qp *QP) Doorbell() error {
	qp.lock()
	if qp.ended || qp.state < verbs.StateRTS {
		qp.unlock()
		return unix.EINVAL
	}
	qp.request()
	if qp.state == verbs.StateErr {
		qp.flushReceives()
	}
	qp.sendAck()
	qp.unlock()
	qp.dev.drain(drainWork)
	return nil
}

// fail moves the QP to the error state, where requests are flushed.
func (qp *QP) fail() {
	qp.lock()
	if !qp.ended && qp.state != verbs.StateErr {
		qp.setError()
	}
	qp.unlock()
}

// setError is rxe_qp_error.
func (qp *QP) setError() {
	qp.sendAck() // of requests that have been executed
	qp.state = verbs.StateErr
	qp.attr.SQDraining = false
	qp.resp.drop(qp.dev)
	qp.flushSends()
	qp.flushReceives()
	if qp.srq != nil {
		qp.report(verbs.EventQPLastWQEReached)
	}
}

// report reports an event of the QP.
func (qp *QP) report(t verbs.AsyncEventType) {
	if qp.event != nil && !qp.ended {
		qp.event(t)
	}
}

// reset is rxe_qp_reset.
func (qp *QP) reset() {
	clear(qp.sq.ring.mem[ringHeader:])
	qp.sq.ring.index = qp.sq.ring.producer()
	qp.sq.ring.cons.Store(qp.sq.ring.index)
	qp.sq.next, qp.sq.loaded = qp.sq.ring.index, qp.sq.ring.index
	if r := qp.rq.ring; r != nil {
		clear(r.mem[ringHeader:])
		r.index = r.producer()
		r.cons.Store(r.index)
	}
	qp.resp.drop(qp.dev)
	clear(qp.resp.resources)
	qp.req = requester{psn: qp.req.psn, top: qp.req.psn, reads: int(qp.attr.MaxRDAtomic)}
	qp.comp = completer{psn: qp.req.psn}
	qp.resp = responder{psn: qp.resp.psn, resources: qp.resp.resources}
	qp.attr.SQDraining = false
}

// newWC returns a completion of the QP.
func (qp *QP) newWC(id uint64, status verbs.WCStatus) abi.IbUverbsWc {
	return abi.IbUverbsWc{WrId: id, Status: uint32(status), QpNum: qp.num}
}

// setTimer makes the QP's timer fire at a time or earlier.
func (qp *QP) setTimer(at time.Duration) {
	if qp.timerAt != 0 && qp.timerAt <= at || qp.ended {
		return
	}
	qp.timerAt = at
	qp.dev.timers.set(qp, at)
}

// roundUp returns the least power of two that is not less than n, or 0 for 0.
func roundUp(n uint8) int {
	if n == 0 {
		return 0
	}
	return 1 << bits.Len8(n-1)
}

// Num returns the QP's number.
func (qp *QP) Num() uint32 { return qp.num }

// Cap returns the sizes of the queues as created.
func (qp *QP) Cap() verbs.QPCap { return qp.cap }

// SendRing returns the send queue, whose elements are abi.RxeSendWqe with SGEs or inline
// data.
func (qp *QP) SendRing() *Ring { return qp.sq.ring }

// RecvRing returns the receive queue, whose elements are abi.RxeRecvWqe with SGEs, or nil
// if the QP has an SRQ.
func (qp *QP) RecvRing() *Ring { return qp.rq.ring }
