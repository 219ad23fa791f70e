//go:build linux

package erdma

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/lab/internal/pcidev"
)

// qp is a queue pair. The adapter learns of requests by doorbells, which have the index behind the last
// unit of a send queue, or receive, in 16 bits.
type qp struct {
	d      *Device
	num    uint32
	owner  owner
	kernel bool // may register memory, and name all of it by dmaKey
	pd     *pd
	e      *engine.QP
	sq, rq pcidev.Ring
	shown  atomic.Uint32 // of sq, by doorbells
	posted atomic.Uint32 // of rq

	// Under the engine's lock of the QP:
	sent, received uint16
	then           []byte // the request whose second half is next, see invalidateAfter
	halfFailed     bool   // the first half of such a request has failed

	peer atomic.Pointer[qp] // nil before it is connected
	lost atomic.Bool        // the peer has ended the connection
	told atomic.Bool        // the driver knows

	datagram bool // of UD

	// Of commands alone:
	state qpState // in RoCE mode one of roceStates
	end   end
}

// qpState is a state of an iWARP QP, enum erdma_qps_iwarp.
type qpState uint8

const (
	qpIdle      qpState = 0
	qpRTR       qpState = 1
	qpRTS       qpState = 2
	qpClosing   qpState = 3
	qpTerminate qpState = 4
	qpError     qpState = 5
)

const (
	// Sizes of the engine's rings. They hold the next requests: the rest waits in the guest's memory.
	engineSends = 31
	engineRecvs = 15

	maxSGEs   = 6 // ERDMA_MAX_SEND_SGE; a receive has one
	maxUnits  = 4 // of a request
	maxReads  = 128
	lastCC    = 4 // ERDMA_CC_HPCC_INT
	cookieTag = 0xe0000000
)

// createQP is struct erdma_cmdq_create_qp_req.
func (d *Device) createQP(b []byte, r *response) (err error) {
	cfg0, cfg1 := le.Uint32(b[8:]), le.Uint32(b[12:])
	q := &qp{d: d, num: cfg0 & 0xfffff}
	if d.cfg.RoCE && le.Uint32(b[116:])&15 == qpUD {
		q.num = max(q.num, gsiNum)
	}
	if q.num == 0 || q.num >= maxQPs || d.qps.Has(q.num) || cfg0>>20 > logSends || cfg1>>20 > logRecvs {
		return fmt.Errorf("QP %d of 1<<%d units and 1<<%d receives: %w", q.num, cfg0>>20, cfg1>>20, errInvalid)
	}
	if le.Uint32(b[16:])>>25&1 != 0 { // a program's
		cfg := le.Uint32(b[112:])
		o, err := d.ownerOf(cfg >> 16)
		if other, e := d.ownerOf(cfg & 0xffff); err != nil || e != nil || o != other {
			return fmt.Errorf("QP %d: pages %d and %d of doorbells: %w", q.num, cfg>>16, cfg&0xffff, errInvalid)
		}
		q.owner = o
	}
	if q.pd, err = d.usePD(cfg1 & 0xfffff); err != nil {
		return err
	}
	init := engine.QPInit{
		Type: verbs.RC, Owner: q, Strict: true, Event: q.event, RefillSend: q.refillSend, RefillRecv: q.refillRecv, Execute: q.execute, Invalidate: q.invalidate,
		Cap: verbs.QPCap{MaxSendWR: engineSends, MaxRecvWR: engineRecvs, MaxSendSGE: maxSGEs, MaxRecvSGE: 1, MaxInline: maxUnits * unit},
	}
	for _, o := range []struct {
		ring                           *pcidev.Ring
		cq                             **engine.CQ
		log                            uint32
		cfg, addr, table, record, more int // offsets
	}{{&q.sq, &init.SendCQ, cfg0 >> 20, 16, 24, 40, 48, 64}, {&q.rq, &init.RecvCQ, cfg1 >> 20, 20, 32, 44, 56, 88}} {
		if err = q.openRing(b, o.ring, o.cq, o.log, o.cfg, o.addr, o.table, o.record, o.more); err != nil {
			q.unmap()
			return fmt.Errorf("QP %d: %w", q.num, err)
		}
	}
	// The driver of 6.1 gives programs no pages of doorbells. Their queues have tables (get_mtt_entries), and the kernel's
	// are one block.
	if q.kernel = q.owner == 0 && le.Uint32(b[40:])&1 == 0; q.kernel {
		err = d.useDMA(q.pd)
	}
	if err == nil && d.cfg.RoCE {
		err = q.roceInit(le.Uint32(b[116:])&15, &init)
	}
	if err == nil {
		q.e, err = q.pd.e.CreateQP(init)
	}
	if err != nil {
		q.unmap()
		return err
	}
	if d.cfg.RoCE {
		d.qps.Put(q.num, q)
		return nil
	}
	const all = verbs.AccessRemoteRead | verbs.AccessRemoteWrite | verbs.AccessRemoteAtomic
	if err = q.e.Modify(&verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: all}, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccess); err != nil {
		q.destroy()
		return err
	}
	d.qps.Put(q.num, q)
	r[0] = uint64(q.cookie())
	return nil
}

// openRing maps a queue and finds its CQ. The other arguments are the offsets of the queue's fields in
// the command.
func (q *qp) openRing(b []byte, r *pcidev.Ring, to **engine.CQ, log uint32, cfg, addr, table, record, more int) error {
	c, t := le.Uint32(b[cfg:]), le.Uint32(b[table:])
	cq, ok := q.d.cqs.Get(c & 0xffffff)
	if !ok || cq.owner != q.owner {
		return fmt.Errorf("no CQ %d: %w", c&0xffffff, errInvalid)
	}
	*to = cq.e
	if err := q.d.record8(le.Uint64(b[record:])); err != nil {
		return err
	}
	list, err := q.d.table(int(t&1), le.Uint64(b[addr:]), b[more:more+24], int(t>>1&0x7ff))
	if err == nil {
		*r, err = q.d.ring(list, 4096<<(c>>28), int(t&^0xfff), 1<<log, unit)
	}
	return err
}

// cookie names the QP to the peer's adapter, to which the connection managers carry it.
func (q *qp) cookie() uint32 { return cookieTag | q.num }

// destroyQP is struct erdma_cmdq_destroy_qp_req.
func (d *Device) destroyQP(b []byte, _ *response) error {
	q, err := d.findQP(le.Uint32(b[8:]))
	if err != nil {
		return err
	}
	d.qps.Remove(q.num) // first, so that doorbells no longer find it
	q.destroy()
	return nil
}

// findQP returns the QP that a command names.
func (d *Device) findQP(num uint32) (*qp, error) {
	if num == 0 && d.cfg.RoCE {
		num = gsiNum
	}
	q, ok := d.qps.Get(num)
	if !ok {
		return nil, fmt.Errorf("no QP %d: %w", num, errInvalid)
	}
	return q, nil
}

func (q *qp) destroy() {
	q.d.cfg.Links.leave(q)
	q.d.eng.Acknowledge(q.e.Num())
	q.e.Destroy()
	q.d.flusher.Remove(q)
	q.unmap()
}

// unmap ends the QP's use of the guest's memory and of its PD.
func (q *qp) unmap() {
	q.sq.Unmap()
	q.rq.Unmap()
	q.d.leavePD(q.pd)
}

// modifyQP is struct erdma_cmdq_modify_qp_req.
func (d *Device) modifyQP(b []byte, _ *response) error {
	cfg := le.Uint32(b[8:])
	q, err := d.findQP(cfg & 0xfffff)
	if err != nil {
		return err
	}
	if d.cfg.RoCE {
		return q.modifyRoCE(b)
	}
	to := qpState(cfg >> 24)
	switch to {
	case qpRTS:
		if q.state != qpIdle && q.state != qpRTR || cfg>>20&15 > lastCC {
			return fmt.Errorf("QP %d is in state %d, with algorithm %d: %w", q.num, q.state, cfg>>20&15, errInvalid)
		}
		q.end = end{sendNext: le.Uint32(b[28:]), recvNext: le.Uint32(b[32:]), cookie: q.cookie(), peersCookie: le.Uint32(b[12:])}
		copy(q.end.own[:], b[20:26]) // sip, sport
		copy(q.end.peer[:], b[16:20])
		copy(q.end.peer[4:], b[26:28])
		if err := q.connect(); err != nil {
			return err
		}
	case qpClosing, qpTerminate, qpError:
		d.cfg.Links.leave(q)
		d.eng.Acknowledge(q.e.Num()) // the peer must not take what has arrived for lost
		q.fail()
	default:
		return fmt.Errorf("QP %d: state %d: %w", q.num, to, errInvalid)
	}
	q.state = to
	return nil
}

// connect connects the QP to the other end of its TCP connection, when both have joined.
func (q *qp) connect() error {
	peer, ok := q.d.cfg.Links.join(q)
	switch {
	case !ok:
		return fmt.Errorf("QP %d: another QP has this connection: %w", q.num, errInvalid)
	case peer == nil:
		return nil
	case !q.end.fits(&peer.end):
		return fmt.Errorf("QP %d: end %+v, the other %+v: %w", q.num, q.end, peer.end, errInvalid)
	}
	for _, c := range [][2]*qp{{q, peer}, {peer, q}} {
		c[0].peer.Store(c[1])
		if err := c[0].link(c[1]); err != nil {
			return fmt.Errorf("QP %d: %w", c[0].num, err)
		}
	}
	q.e.Doorbell()
	peer.e.Doorbell()
	return nil
}

// link makes the engine's QP the peer of another. A receive that is missing is waited for, for any time:
// what firmware does is not public.
func (q *qp) link(p *qp) error {
	err := q.e.Modify(&verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: 5, DestQPNum: p.e.Num(), RQPSN: p.psn(), MaxDestRDAtomic: maxReads, MinRNRTimer: 1,
		AV: verbs.AddressVector{Global: true, Port: 1, DGID: p.d.addr.As16(), HopLimit: 1},
	}, verbs.MaskState|verbs.MaskAV|verbs.MaskPathMTU|verbs.MaskDestQPNum|verbs.MaskRQPSN|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	if err != nil {
		return err
	}
	return q.e.Modify(&verbs.QPAttr{State: verbs.StateRTS, SQPSN: q.psn(), Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: maxReads},
		verbs.MaskState|verbs.MaskSQPSN|verbs.MaskTimeout|verbs.MaskRetryCount|verbs.MaskRNRRetry|verbs.MaskMaxRDAtomic)
}

func (q *qp) psn() uint32 { return q.end.sendNext & 0xffffff }

// fail moves the QP to the error state: what has been posted, and what is from now on, is flushed.
func (q *qp) fail() {
	q.e.Modify(&verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)
	q.failed()
}

// failed makes the flusher complete the receives that the guest posts from now on. At their doorbells would
// be too early: the driver stores the ID of a receive only behind the doorbell (erdma_post_recv_one), so
// that it would take the completion for another's.
func (q *qp) failed() { q.d.flusher.Add(q) }

// lose makes the QP's connection fail.
func (q *qp) lose() {
	q.fail()
	q.tell()
}

// tell tells the driver once that the QP has failed.
func (q *qp) tell() {
	if !q.told.Swap(true) {
		q.d.asynchronous(eventQPFatal, q.num)
	}
}

// Flush implements [pcidev.Failing].
func (q *qp) Flush() bool {
	if now, ok := q.d.qps.Get(q.num); !ok || now != q { // it has been destroyed
		return false
	}
	if q.lost.Swap(false) {
		q.lose()
	}
	q.e.Doorbell()
	return q.e.Query().State == verbs.StateErr
}

// broken takes note of a request that has failed, with which the QP has ended the connection. The peer
// learns of it a moment later, as it would by the TCP connection. The engine's QP is locked.
func (q *qp) broken() {
	if p := q.peer.Load(); p != nil {
		p.lost.Store(true)
		p.d.flusher.Add(p)
	}
}

// reflush is struct erdma_cmdq_reflush_req. It flushes what the kernel has posted to a QP in the error
// state: doorbells that it rang before the state changed may have been lost.
func (d *Device) reflush(b []byte, _ *response) error {
	q, err := d.findQP(le.Uint32(b[8:]))
	if err != nil {
		return err
	}
	q.shown.Store(uint32(uint16(le.Uint32(b[12:]))))
	q.posted.Store(uint32(uint16(le.Uint32(b[16:]))))
	q.fail()
	q.e.Doorbell()
	return nil
}

// event tells the driver that the QP has failed. The engine's QP is locked.
func (q *qp) event(t verbs.AsyncEventType) {
	switch t {
	case verbs.EventQPFatal, verbs.EventQPReqErr, verbs.EventQPAccessErr:
		q.failed()
		q.tell()
	}
}
