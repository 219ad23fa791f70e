package engine

import (
	"encoding/binary"
	"math"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// The dynamically connected transport (DC) of ConnectX, for a model of that adapter. An initiator is an
// RC QP whose requests name their targets; a target makes one RC QP, a leg, for each initiator that
// connects to it. Before a request to another target than that of the one before, the initiator
// waits until all others are complete, and connects:
//
//	initiator                                  target
//	    ── connect: token, key, PSN, MTU ──────►  makes a leg that expects the PSN
//	    ◄───────── accept: token, QP of the leg ──
//	    ── requests of RC, to the leg ─────────►
//	    ── close: token ───────────────────────►  destroys the leg
//
// What adapters send is not public. These messages are datagrams (UD SEND ONLY) with a Q_Key of their
// own. A connect that is not answered is sent again, with the same token, by which the target knows
// that it has a leg already; then the requests behind it fail as if RC had had no answer. A target
// with another key does not answer. A close may be lost: such legs go when there are many. So that
// no leg that is in use goes, an initiator that was idle connects again.

// Destination is where a request of a QP with [QPInit.Dynamic] goes.
type Destination struct {
	AH  uint32 // number of an address handle
	Num uint32 // of the target
	Key uint64
}

// Kinds of messages, their first byte. The token of the handshake follows, and then the rest.
const (
	dcConnect = 1 // key, PSN, MTU
	dcAccept  = 2 // QP number
	dcClose   = 3

	dcKind, dcMTU = 0, 1
	dcToken       = 4
	dcKey         = 8
	dcPSN         = 16
	dcLeg         = 8
	dcSize        = 20

	dcQKey = 0x80dc0000 // with the bit that keeps programs from using it themselves

	// Numbers of targets, beyond those of QPs.
	minTarget = 1 << 22
	maxTarget = 1<<23 - 1

	dcIdle  = time.Second     // after which an initiator connects again
	legIdle = 2 * time.Minute // after which a leg may go
	fewLegs = 64              // of a target that go never
	maxLegs = 4096            // of a target
)

// Destine sets the destination of the request that Publish adds next. Only RefillSend of a QP with
// Dynamic may call it, for all requests but those of OpDevice.
func (r *Ring) Destine(d Destination) { r.dests[r.producer()] = d }

// initiator is what a requester with Dynamic knows of its connection.
type initiator struct {
	state dcState
	to    Destination // connected to, or to be
	path  *path
	token uint32
	left  uint8         // times to ask
	at    time.Duration // when to ask again
	used  time.Duration // when a request was begun
}

type dcState uint8

const (
	dcNone dcState = iota
	dcAsking
	dcConnected
)

// connected reports whether a request can be sent. If not, it connects to the request's target as soon
// as those before it are complete.
func (q *requester) connected(r *request) bool {
	c := &q.dc
	if r.started() { // sent again
		return true
	}
	now := q.qp.dev.now()
	if c.state == dcConnected && c.to == r.dest && (q.psn != q.comp.psn || now-c.used < dcIdle) {
		c.used = now
		return true
	}
	q.completeDone() // of the device, before it
	if c.state == dcAsking || q.next != q.ring.index {
		return false
	}
	q.disconnect()
	ah := q.qp.dev.ahs.get(r.dest.AH)
	if ah == nil || ah.pd != q.qp.pd {
		q.failRequest(r, verbs.WCLocQPOpErr)
		return false
	}
	*c = initiator{state: dcAsking, to: r.dest, path: ah.path, token: roce.Random(), left: q.qp.attr.RetryCount}
	q.ask(now)
	return false
}

// ask asks for a connection.
func (q *requester) ask(now time.Duration) {
	c := &q.dc
	b := make([]byte, dcSize)
	b[dcMTU] = byte(q.qp.attr.PathMTU)
	binary.BigEndian.PutUint64(b[dcKey:], c.to.Key)
	binary.BigEndian.PutUint32(b[dcPSN:], uint32(q.psn))
	q.sendMessage(dcConnect, b)
	wait := q.timeout
	if wait == 0 { // without a limit
		wait, c.left = time.Second, 1
	}
	c.at = now + wait
	q.setTimer(c.at)
}

// sendMessage sends a message to the target.
func (q *requester) sendMessage(kind byte, b []byte) {
	c := &q.dc
	b[dcKind] = kind
	binary.BigEndian.PutUint32(b[dcToken:], c.token)
	h := roce.Packet{Opcode: roce.UDSendOnly, DestQP: c.to.Num, DETH: roce.DETH{QKey: dcQKey, SrcQP: q.qp.num}}
	o := q.out.begin(c.path, &h, len(b))
	copy(o.payload, b)
	q.out.send(&o, &h)
}

// askAgain is called when the QP's timer has fired.
func (q *requester) askAgain(now time.Duration) {
	c := &q.dc
	if c.state != dcAsking {
		return
	}
	if now < c.at {
		q.setTimer(c.at)
		return
	}
	if c.left > 0 {
		c.left--
		q.qp.dev.counters.add(retries, 1)
		q.ask(now)
		return
	}
	q.qp.dev.counters.add(retriesExceeded, 1)
	*c = initiator{}
	q.failRequest(&q.requests[q.next], verbs.WCRetryExcErr)
}

// accepted takes a message to an initiator.
func (q *requester) accepted(p *packet) {
	c := &q.dc
	if c.state != dcAsking || len(p.Payload) != dcSize || p.Payload[dcKind] != dcAccept || p.DETH.QKey != dcQKey || p.src != c.path.remote ||
		p.DETH.SrcQP != c.to.Num || binary.BigEndian.Uint32(p.Payload[dcToken:]) != c.token || q.qp.state != verbs.StateRTS {
		return
	}
	c.state, c.used = dcConnected, q.qp.dev.now()
	q.qp.path, q.qp.attr.AV, q.qp.attr.DestQPNum = c.path, c.path.av, binary.BigEndian.Uint32(p.Payload[dcLeg:])
	// Nothing is known of the new path.
	q.window, q.comp.probe, q.comp.retrying = window{}, lossProbe{}, false
	q.comp.retries, q.comp.rnrRetries = q.qp.attr.RetryCount, q.qp.attr.RNRRetry
}

// disconnect tells the target that its leg is not needed any more.
func (q *requester) disconnect() {
	if q.dc.state != dcNone {
		q.sendMessage(dcClose, make([]byte, dcSize))
	}
	q.dc = initiator{}
}

// Target is a DC target: it receives from an SRQ.
type Target struct {
	pd   *PD
	num  uint32
	init TargetInit

	mu     sync.Mutex
	closed bool
	legs   map[legKey]*leg
	swept  time.Duration
}

// TargetInit describes a target. CQ, SRQ, Owner, Invalidate and PageFault are as in [QPInit].
type TargetInit struct {
	Key         uint64
	CQ          *CQ
	SRQ         *SRQ
	Access      verbs.Access
	MinRNRTimer uint8
	MaxMTU      verbs.MTU // of messages
	Owner       any
	Invalidate  func(key uint32) bool
	PageFault   func(PageFault)
}

// legKey is an initiator.
type legKey struct {
	addr netip.Addr
	num  uint32
}

// leg is the QP for an initiator.
type leg struct {
	qp    *QP
	token uint32
	heard uint64 // QP.heard when the legs were swept
}

// CreateTarget makes a target.
func (pd *PD) CreateTarget(init TargetInit) (*Target, error) {
	if err := pd.dev.usable(); err != nil {
		return nil, err
	}
	if init.CQ == nil || init.SRQ == nil || init.MaxMTU.Bytes() == 0 || init.Access&^accessQP != 0 {
		return nil, syscall.EINVAL
	}
	t := &Target{pd: pd, init: init, legs: map[legKey]*leg{}}
	if err := use(t.uses()); err != nil {
		return nil, err
	}
	if !pd.dev.targets.add(t, &t.num, minTarget, maxTarget) {
		release(t.uses())
		return nil, syscall.ENOMEM
	}
	return t, nil
}

func (t *Target) uses() []*useCount {
	return []*useCount{&t.pd.use, &t.init.CQ.use, &t.init.SRQ.use}
}

// Num returns the target's number.
func (t *Target) Num() uint32 { return t.num }

// Drain ends the target's connections, and makes no others: initiators get no answers any more.
func (t *Target) Drain() {
	t.mu.Lock()
	legs := t.legs
	t.legs, t.closed = nil, true
	t.mu.Unlock()
	for _, l := range legs {
		l.qp.Destroy()
	}
}

// Destroy ends the target.
func (t *Target) Destroy() error {
	if !t.pd.dev.targets.remove(t.num) {
		return syscall.EINVAL
	}
	t.Drain()
	release(t.uses())
	return nil
}

// receive takes a message to a target. No QP is locked.
func (t *Target) receive(p *packet) {
	if p.Opcode != roce.UDSendOnly || p.DETH.QKey != dcQKey || len(p.Payload) != dcSize || !t.pd.dev.checkPKey(p) {
		return
	}
	from, token := legKey{p.src, p.DETH.SrcQP}, binary.BigEndian.Uint32(p.Payload[dcToken:])
	var old []*leg
	switch p.Payload[dcKind] {
	case dcConnect:
		var l *leg
		if l, old = t.connect(p, from, token); l != nil {
			t.accept(p, l)
		}
	case dcClose:
		t.mu.Lock()
		if l := t.legs[from]; l != nil && l.token == token {
			delete(t.legs, from)
			old = append(old, l)
		}
		t.mu.Unlock()
	}
	for _, l := range old {
		l.qp.Destroy()
	}
}

// connect returns the leg for an initiator, or nil if it gets none, and those that are to be destroyed.
func (t *Target) connect(p *packet, from legKey, token uint32) (l *leg, old []*leg) {
	mtu := verbs.MTU(p.Payload[dcMTU])
	if binary.BigEndian.Uint64(p.Payload[dcKey:]) != t.init.Key || mtu.Bytes() == 0 || mtu > t.init.MaxMTU {
		return nil, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, nil
	}
	if l = t.legs[from]; l != nil && l.token == token {
		return l, nil
	}
	if l != nil {
		old = append(old, l)
		delete(t.legs, from)
	}
	if len(t.legs) > fewLegs {
		old = append(old, t.sweep()...)
	}
	if len(t.legs) >= maxLegs {
		return nil, old
	}
	qp, err := t.newLeg(p, from, mtu)
	if err != nil {
		return nil, old
	}
	l = &leg{qp: qp, token: token, heard: math.MaxUint64}
	t.legs[from] = l
	return l, old
}

// newLeg makes the QP for an initiator.
func (t *Target) newLeg(p *packet, from legKey, mtu verbs.MTU) (*QP, error) {
	d := t.pd.dev
	qp, err := t.pd.CreateQP(QPInit{
		Type: verbs.RC, Owner: t.init.Owner, Strict: true, SendCQ: t.init.CQ, RecvCQ: t.init.CQ, SRQ: t.init.SRQ, Invalidate: t.init.Invalidate,
		PageFault: t.init.PageFault,
		Cap:       verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1},
	})
	if err != nil {
		return nil, err
	}
	a := verbs.QPAttr{
		State: verbs.StateInit, Port: 1, Access: t.init.Access, PathMTU: mtu, DestQPNum: from.num,
		RQPSN:           binary.BigEndian.Uint32(p.Payload[dcPSN:]),
		MaxDestRDAtomic: 16, MinRNRTimer: t.init.MinRNRTimer,
		AV: verbs.AddressVector{Global: true, Port: 1, SGIDIndex: uint8(d.GIDIndex(p.dst)), DGID: from.addr.As16(), HopLimit: hopLimit, TrafficClass: p.tos},
	}
	err = qp.apply(&a, verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskAccess)
	if err == nil {
		a.State = verbs.StateRTR
		err = qp.apply(&a, verbs.MaskState|maskRTR|verbs.MaskMaxDestRDAtomic|verbs.MaskMinRNRTimer)
	}
	if err != nil {
		go qp.Destroy() // without the target's lock
		return nil, err
	}
	return qp, nil
}

// sweep takes out the legs that have received nothing since the last time.
func (t *Target) sweep() (idle []*leg) {
	now := t.pd.dev.now()
	if now-t.swept < legIdle {
		return nil
	}
	t.swept = now
	for k, l := range t.legs {
		l.qp.mu.Lock()
		heard := l.qp.heard
		l.qp.mu.Unlock()
		if heard == l.heard {
			delete(t.legs, k)
			idle = append(idle, l)
		}
		l.heard = heard
	}
	return idle
}

// accept answers an initiator.
func (t *Target) accept(p *packet, l *leg) {
	d := t.pd.dev
	port := d.gids.of(p.dst)
	if port == nil {
		return
	}
	to, err := d.pathTo(port, p.src, verbs.AddressVector{TrafficClass: p.tos})
	if err != nil {
		return
	}
	b := make([]byte, dcSize)
	b[dcKind] = dcAccept
	copy(b[dcToken:dcToken+4], p.Payload[dcToken:])
	binary.BigEndian.PutUint32(b[dcLeg:], l.qp.num)
	d.sendDatagram(to, &roce.Packet{
		Opcode: roce.UDSendOnly, PKey: roce.DefaultPKey, DestQP: p.DETH.SrcQP, DETH: roce.DETH{QKey: dcQKey, SrcQP: t.num}, Payload: b,
	})
}
