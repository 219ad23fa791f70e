package engine

import (
	"math/bits"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// QP is a queue pair: its lock and state, and what requester and responder share. The requester
// handles work requests of the program, the responder packets of the peer's requester.
type QP struct {
	dev       *Device
	pd        *PD
	num       uint32
	init      QPInit // as it was made: Cap has the sizes of the queues
	transport roce.Transport

	mu      sync.Mutex
	state   verbs.QPState
	attr    verbs.QPAttr
	ended   bool
	path    *path // nil before RTR, and for UD
	mtu     int
	groups  int    // multicast groups it is attached to
	resumed bool   // a work item is queued to resume
	heard   uint64 // packets of the peer

	lastLocal  *MR // of local
	lastRemote *MR // of remote

	requester requester
	responder responder
	out       out

	timer timer // of Device.timers
}

// QPInit describes a QP.
type QPInit struct {
	Type           verbs.QPType // RC, UC or UD; others fail with EOPNOTSUPP
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ        // may be nil
	Cap            verbs.QPCap // as the kernel's struct ib_qp_cap: without defaults
	SignalAll      bool
	Event          func(verbs.AsyncEventType) // events of the QP

	// For device models:
	Num   uint32 // of the QP, which fails if it is in use; 1 gets the datagrams of OnMAD; 0 selects a number
	Owner any    // of Completion
	// Strict makes failures complete as on adapters, by the names of the InfiniBand Architecture:
	// of local keys as WCLocProtErr (local protection error), of messages that are too long for a
	// receive as WCLocLenErr (local length error). rxe reports both as WCLocQPOpErr
	// (RESPST_ERR_MALFORMED_WQE).
	Strict bool
	// RefillSend and RefillRecv, if not nil, are called with the QP locked when a ring is empty, to
	// add requests by NextSend or NextRecv and Publish.
	RefillSend, RefillRecv func(*Ring)
	// Execute is called, with the QP locked, when it is the turn of a request with the opcode
	// [OpDevice], which completes with the status that it returns. data is the room that NextSend
	// gave for inline data. On RC it is the turn of such a request when those before it are
	// complete.
	Execute func(id uint64, data []byte) verbs.WCStatus
	// Dynamic makes an RC QP the initiator of DC: RefillSend calls Destine for each of its
	// requests. It has no peer of its own, and executes no requests.
	Dynamic bool
	// Invalidate is called, with the QP locked, for the key that a peer's SEND invalidates. It
	// reports whether it did.
	Invalidate func(key uint32) bool
	// PageFault is called, with the QP locked, when an access finds memory of a Paged region missing. The
	// QP waits for Device.Resume.
	PageFault func(PageFault)
}

// CreateQP makes a QP. It fails with EINVAL if sizes are out of range.
func (pd *PD) CreateQP(init QPInit) (*QP, error) {
	d := pd.dev
	if err := d.usable(); err != nil {
		return nil, err
	}
	qp := &QP{dev: d, pd: pd, init: init, mtu: verbs.MTU256.Bytes(), attr: verbs.QPAttr{PathMTU: verbs.MTU256}}
	qp.out.dev = d
	qp.requester.qp, qp.requester.init, qp.requester.out = qp, &qp.init, &qp.out
	qp.responder.qp, qp.responder.init, qp.responder.out = qp, &qp.init, &qp.out
	var ok bool
	if qp.transport, ok = transports[init.Type]; !ok {
		return nil, syscall.EOPNOTSUPP
	}
	if init.SendCQ == nil || init.RecvCQ == nil || init.Dynamic && init.Type != verbs.RC {
		return nil, syscall.EINVAL
	}
	if err := checkCap(init.Cap, init.SRQ != nil, init.RefillSend != nil); err != nil {
		return nil, err
	}
	if init.Num > maxValue || init.Num == 1 && init.Type != verbs.UD {
		return nil, syscall.EINVAL
	}
	qp.init.Cap = qp.makeQueues(init.Cap)
	if err := use(qp.uses()); err != nil {
		return nil, err
	}
	if qp.num = init.Num; qp.num != 0 {
		ok = d.qps.put(qp.num, qp)
	} else {
		ok = d.qps.add(qp, &qp.num, minQPNum, maxValue)
	}
	if !ok {
		release(qp.uses())
		return nil, syscall.ENOMEM
	}
	return qp, nil
}

var transports = map[verbs.QPType]roce.Transport{verbs.RC: roce.RC, verbs.UC: roce.UC, verbs.UD: roce.UD}

// checkCap is rxe_qp_chk_cap.
func checkCap(c verbs.QPCap, srq, fed bool) error {
	sges, inline := maxSGE, maxInline
	if fed {
		sges, inline = feedSGE, feedInline
	}
	invalid := func(n, most int) bool { return n < 0 || n > most }
	if invalid(c.MaxSendWR, maxQPWR) || invalid(c.MaxSendSGE, sges) || invalid(c.MaxInline, inline) ||
		!srq && (invalid(c.MaxRecvWR, maxQPWR) || invalid(c.MaxRecvSGE, sges)) {
		return syscall.EINVAL
	}
	return nil
}

// makeQueues makes the rings and returns the sizes that they have.
func (qp *QP) makeQueues(c verbs.QPCap) verbs.QPCap {
	data := max(c.MaxSendSGE*sgeSize, c.MaxInline)
	c.MaxSendSGE, c.MaxInline = data/sgeSize, data
	qp.requester.ring = newRing(c.MaxSendWR, sendWQESize+data)
	c.MaxSendWR = qp.requester.ring.Cap()
	qp.requester.makeRequests(c.MaxSendSGE)
	if qp.init.Dynamic {
		qp.requester.ring.dests = make([]Destination, qp.requester.ring.mask+1)
	}
	qp.requester.device = qp.init.Execute != nil
	if qp.init.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
		return c
	}
	qp.responder.ring = newRing(c.MaxRecvWR, recvSize(c.MaxRecvSGE))
	c.MaxRecvWR = qp.responder.ring.Cap()
	return c
}

func (qp *QP) uses() []*useCount {
	uses := []*useCount{&qp.pd.use, &qp.init.SendCQ.use, &qp.init.RecvCQ.use}
	if qp.init.SRQ != nil {
		uses = append(uses, &qp.init.SRQ.use)
	}
	return uses
}

// use counts an object in those that it uses.
func use(uses []*useCount) error {
	for i, u := range uses {
		if !u.get() {
			release(uses[:i])
			return syscall.EINVAL
		}
	}
	return nil
}

func release(uses []*useCount) {
	for _, u := range uses {
		u.put()
	}
}

// Destroy ends the QP. It fails with EBUSY while the QP is attached to a multicast group.
// Requests that have not completed never do.
func (qp *QP) Destroy() error {
	qp.lock()
	if qp.ended || qp.groups > 0 {
		err := error(syscall.EINVAL)
		if !qp.ended {
			err = syscall.EBUSY
		}
		qp.unlock()
		return err
	}
	qp.responder.sendAck()
	qp.requester.disconnect()
	qp.ended = true
	qp.responder.drop()
	qp.unlock()
	qp.dev.qps.remove(qp.num) // Acknowledge takes a QP that is missing for one that owes nothing
	qp.dev.drain()
	qp.dev.timers.remove(qp)
	release(qp.uses())
	return nil
}

// Acknowledge sends the acknowledgement that a QP owes: the peer is about to learn that the
// connection ends, and would take unacknowledged requests for lost. The caller holds no lock of a
// QP.
func (d *Device) Acknowledge(num uint32) {
	qp := d.qps.get(num)
	if qp == nil {
		return
	}
	qp.lock()
	qp.responder.sendAck()
	qp.unlock()
	d.drain()
}

// Doorbell processes the send queue after requests were added to it, and flushes the
// receive queue of a QP in the error state. It fails with EINVAL in the states before RTS.
func (qp *QP) Doorbell() error {
	qp.lock()
	if qp.ended || qp.state < verbs.StateRTS {
		qp.unlock()
		return syscall.EINVAL
	}
	qp.requester.run()
	if qp.state == verbs.StateErr {
		qp.responder.flush()
	}
	qp.responder.sendAck()
	qp.unlock()
	qp.dev.drain()
	return nil
}

// lock locks the QP for work that may send packets.
func (qp *QP) lock() { qp.mu.Lock() }

// unlock sends the packets in out and unlocks the QP. The caller then calls Device.drain, unless
// its caller does.
func (qp *QP) unlock() {
	qp.out.flush()
	if qp.out.oversize.known {
		qp.failOversize() // may answer
		qp.out.flush()
	}
	qp.out.close()
	qp.mu.Unlock()
}

// failOversize fails the request of a packet that was too large for its link, as repeating it would
// fail as well. If it was a response, the peer's request fails.
func (qp *QP) failOversize() {
	o := qp.out.oversize
	qp.out.oversize = oversize{}
	switch {
	case !o.known || qp.ended || qp.state == verbs.StateErr:
	case o.opcode.Has(roce.IsResponse):
		if qp.path != nil {
			qp.responder.sendNAK(roce.NAKRemoteOp, o.psn)
			qp.setError()
			qp.report(verbs.EventQPFatal)
		}
	default:
		if r := qp.requester.requestOf(o.psn); r != nil {
			r.state = requestSent // not done
			qp.requester.completeDone()
			qp.requester.failRequest(r, verbs.WCLocLenErr)
		}
	}
}

// localFault returns the status of a failure of local memory, rxe's or InfiniBand's, see QPInit.
func (qp *QP) localFault() verbs.WCStatus {
	if qp.init.Strict {
		return verbs.WCLocProtErr
	}
	return verbs.WCLocQPOpErr
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
	// The peer must neither repeat executed requests nor report them as failed.
	qp.responder.sendAck() // of requests that have been executed
	qp.state = verbs.StateErr
	qp.attr.SQDraining = false
	qp.requester.paging, qp.responder.paging = paging{}, paging{}
	qp.responder.drop()
	qp.requester.flush()
	qp.responder.flush()
	if qp.init.SRQ != nil {
		// The QP takes no more receives of the SRQ: from now on the program may destroy it without
		// losing one (IBA, 10.3.1).
		qp.report(verbs.EventQPLastWQEReached)
	}
}

func (qp *QP) report(t verbs.AsyncEventType) {
	if qp.init.Event != nil && !qp.ended {
		qp.init.Event(t)
	}
}

// reset is rxe_qp_reset.
func (qp *QP) reset() {
	qp.requester.reset()
	qp.responder.reset()
	qp.attr.SQDraining = false
}

func (qp *QP) newWC(id uint64, status verbs.WCStatus) abi.IbUverbsWc {
	return abi.IbUverbsWc{WrId: id, Status: uint32(status), QpNum: qp.num}
}

// roundUp returns the least power of two that is not less than n, or 0 for 0.
func roundUp(n uint8) uint8 {
	if n == 0 {
		return 0
	}
	return 1 << bits.Len8(n-1)
}

// Num returns the QP's number.
func (qp *QP) Num() uint32 { return qp.num }

// Cap returns the sizes of the queues as created.
func (qp *QP) Cap() verbs.QPCap { return qp.init.Cap }

// SendRing returns the send queue, whose elements are abi.RxeSendWqe with SGEs or inline
// data.
func (qp *QP) SendRing() *Ring { return qp.requester.ring }

// RecvRing returns the receive queue, whose elements are abi.RxeRecvWqe with SGEs, or nil
// if the QP has an SRQ.
func (qp *QP) RecvRing() *Ring { return qp.responder.ring }
