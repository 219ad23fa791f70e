package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	receives = 512     // that are posted
	sends    = 512     // in flight
	inFlight = 1 << 13 // probes without an answer; more wait
	batch    = 64      // completions of a poll, and probes that are due at a time
	maxPaths = 16
	silence  = 5e9 // ns without an answer, after which a target's address is resolved again
)

// key identifies the sender of a datagram.
type key struct {
	gid verbs.GID
	qp  uint32
}

// target is a peer's endpoint, as one of ours reaches it. Only answered changes.
type target struct {
	key
	remote
	stats    *probeStats
	probed   bool // the peer knows our endpoint
	handles  []*uverbs.AH
	to       []verbs.UDAddr // by path; none if the address cannot be resolved
	answered atomic.Int64   // time of its last answer, or of its resolution
}

// table has the targets of an endpoint. It is replaced, never changed.
type table struct {
	byPeer map[string][]*target
	from   map[key]*target
	probed []*target
}

// probe is a probe without an answer, or a free slot.
type probe struct {
	seq             uint64
	to              *target // nil if the slot is free
	path            uint8
	delayed         bool // the second ACK has come
	due, sent       int64
	polled, handled int64 // of the first ACK; 0 if it has not come
	delay           int64 // in the second ACK
}

// endpoint is a UD QP on port 1 of a device. One goroutine sends probes, one receives.
type endpoint struct {
	name    string // of the device
	o       *options
	closers []func() error
	pd      *uverbs.PD
	cq      *uverbs.CQ
	qp      *uverbs.QP
	mr      *uverbs.MR
	room    int // of a receive
	addr    verbs.QPAddr
	qkey    uint32
	start   time.Time
	stamps  *stamps // nil if the device has no timestamps
	stop    context.CancelCauseFunc
	// generation is the agent's when it was ready, which peers must know; under the agent's lock.
	generation int

	updating sync.Mutex // of the table
	table    atomic.Pointer[table]
	retired  map[string][]*target // by peer; their handles may be in use
	closed   bool

	mu           sync.Mutex
	probes       [inFlight]probe // by seq
	oldest, next uint64

	// Datagrams that were dropped: of unknown senders, not ours or impossible, ACKs of no probe in
	// flight (late, twice or forged), and probes for whose answer the send queue had no room.
	unknown, bad, stale, busy atomic.Uint64

	// The fast path's own: it allocates nothing.
	wcs   [batch]verbs.WC
	again [batch]verbs.RecvWR
	recvs [receives]verbs.RecvWR
	ping  [1]verbs.SendWR
	acks  [2]verbs.SendWR
	turn  int // of targets and paths

	answers [sends]answer // whose first ACK is in the send queue, if the device has timestamps
	free    []uint64      // of these
}

// answer is a probe whose second ACK waits for the time at which the first has left.
type answer struct {
	to     verbs.UDAddr
	m      message
	polled int64
}

// isACK marks the IDs of sends that are answers, by number; others are probes.
const isACK = 1 << 63

// stamps makes times of the device's timestamps: nanoseconds since the endpoint's start by the
// device's clock. shift is how far that is ahead of the system's, which is measured again and again.
type stamps struct {
	clock uverbs.Clock
	start time.Time
	shift atomic.Int64
}

func (s *stamps) at(timestamp uint64) int64 { return int64(s.clock.Time(timestamp).Sub(s.start)) }

func (s *stamps) adjust(ctx *uverbs.Context) error {
	now, err := ctx.Clock()
	if err == nil {
		s.shift.Store(int64(s.clock.Time(now.Cycles()).Sub(now.Time(now.Cycles()))))
	}
	return err
}

// openEndpoint makes a QP that receives. The error matches [errors.ErrUnsupported] on iWARP, which
// has no datagrams.
func openEndpoint(d uverbs.Device, o *options) (_ *endpoint, err error) {
	e := &endpoint{name: d.Name, o: o, start: time.Now().Add(-1)}
	e.table.Store(&table{byPeer: map[string][]*target{}})
	e.retired = map[string][]*target{}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	keep := func(c func() error) { e.closers = append(e.closers, c) }
	ctx, err := d.Open()
	if err != nil {
		return nil, err
	}
	keep(ctx.Close)
	attr, err := ctx.QueryPort(1)
	if err != nil {
		return nil, err
	}
	if e.pd, err = ctx.AllocPD(); err != nil {
		return nil, err
	}
	keep(e.pd.Close)
	keep(e.closeTargets)
	events, err := ctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	keep(events.Close)
	cqOptions := uverbs.CQOptions{Depth: receives + sends, Channel: events}
	if clock, err := ctx.Clock(); err == nil {
		e.stamps, cqOptions.Timestamps = &stamps{clock: clock, start: e.start}, verbs.TimestampCycles
		for i := range e.answers {
			e.free = append(e.free, uint64(i))
		}
	}
	if e.cq, err = ctx.CreateCQ(cqOptions); err != nil {
		return nil, err
	}
	keep(e.cq.Close)
	e.qp, err = e.pd.CreateQP(uverbs.QPOptions{Type: verbs.UD, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: messageSize}})
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, fmt.Errorf("%s has no datagrams (UD): %w", d.Name, err)
	} else if err != nil {
		return nil, err
	}
	keep(e.qp.Close)
	// A datagram that is longer than its receive would end the QP. None is longer than the MTU.
	e.room = verbs.GRHSize + max(attr.MaxMTU.Bytes(), messageSize)
	if e.mr, err = e.pd.AllocMR(receives*e.room, verbs.AccessLocalWrite, uverbs.MROptions{}); err != nil {
		return nil, err
	}
	keep(e.mr.Close)
	e.qkey = rand.Uint32() >> 1 // the highest bit is the kernel's
	if err := e.qp.StartUD(1, e.qkey); err != nil {
		return nil, err
	}
	if e.addr, err = e.qp.Addr(1); err != nil {
		return nil, err
	}
	for i := range e.recvs {
		e.recvs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{e.mr.SGE(i*e.room, e.room)}}
	}
	if _, err := e.qp.PostRecv(e.recvs[:]...); err != nil {
		return nil, err
	}
	for _, wr := range []*verbs.SendWR{&e.ping[0], &e.acks[0], &e.acks[1]} {
		*wr = verbs.SendWR{ID: isACK | sends, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: make([]byte, messageSize)}
	}
	e.oldest = rand.Uint64() // so that others cannot guess the numbers in flight
	e.next = e.oldest
	return e, nil
}

func (e *endpoint) close() error {
	var all []error
	for _, c := range slices.Backward(e.closers) {
		all = append(all, c())
	}
	return errors.Join(all...)
}

// check fails if the endpoint must be opened again: it has failed, or its address is another.
func (e *endpoint) check() error {
	attr, err := e.qp.Query()
	if err != nil {
		return err
	}
	addr, err := e.qp.Addr(1)
	switch {
	case err != nil:
		return err
	case attr.State != verbs.StateRTS:
		return fmt.Errorf("QP is in state %v", attr.State)
	case addr.GID != e.addr.GID:
		return fmt.Errorf("address is now %v", addr.GID)
	}
	return nil
}

// run probes and answers until ctx ends, which is no error, or the device fails.
func (e *endpoint) run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, f := range []func(context.Context) error{e.send, e.receive} {
		wg.Go(func() { e.stop(f(ctx)) })
	}
	wg.Wait()
	err := context.Cause(ctx)
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return errors.Join(err, e.close())
}

// now returns the nanoseconds since the start, by the device's clock if it has timestamps.
func (e *endpoint) now() int64 {
	now := int64(time.Since(e.start))
	if e.stamps != nil {
		now += e.stamps.shift.Load()
	}
	return now
}

// send sends the probes that are due, to all targets and paths in turn, and counts those that are
// lost.
func (e *endpoint) send(ctx context.Context) error {
	every := max(time.Second/time.Duration(e.o.rate), time.Millisecond)
	tick := time.NewTicker(every)
	defer tick.Stop()
	adjusted := time.Now()
	for last, debt := int64(time.Since(e.start)), 0.0; ; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case at := <-tick.C:
			due := int64(at.Sub(e.start))
			debt = min(debt+float64(due-last)*float64(e.o.rate)/1e9, batch) // probes missed in a stall stay missed
			last = due
			if e.stamps != nil {
				if at.Sub(adjusted) > time.Second {
					if err := e.stamps.adjust(e.pd.Context()); err != nil {
						return err
					}
					adjusted = at
				}
				due += e.stamps.shift.Load()
			}
			e.expire(e.now())
			for ; debt >= 1-1e-6; debt-- {
				if ok, err := e.probe(due); err != nil {
					return err
				} else if !ok {
					debt = 0
					break
				}
			}
		}
	}
}

// probe sends one probe, if there is a target and room.
func (e *endpoint) probe(due int64) (ok bool, err error) {
	targets := e.table.Load().probed
	if len(targets) == 0 {
		return false, nil
	}
	e.turn++
	to, path := targets[e.turn/e.o.paths%len(targets)], e.turn%e.o.paths
	e.mu.Lock()
	seq := e.next
	p := &e.probes[seq%inFlight]
	full := p.to != nil
	if !full {
		*p = probe{seq: seq, to: to, path: uint8(path), due: due, sent: e.now()}
		e.next++
	}
	e.mu.Unlock()
	if full {
		return false, nil
	}
	message{kind: kindProbe, path: uint8(path), seq: seq}.put(e.ping[0].Inline)
	e.ping[0].To, e.ping[0].ID = to.to[path], seq&^isACK
	if _, err = e.qp.PostSend(e.ping[:]...); err != nil {
		e.mu.Lock()
		p.to = nil // it is not lost, it was not sent
		e.mu.Unlock()
		if errors.Is(err, verbs.ErrQueueFull) {
			return false, nil
		}
	}
	return true, err
}

// expire counts the probes as lost that have no answer in time.
func (e *endpoint) expire(now int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for ; e.oldest != e.next; e.oldest++ {
		p := &e.probes[e.oldest%inFlight]
		if p.to == nil {
			continue
		}
		if now-p.sent < int64(e.o.timeout) {
			return
		}
		p.to.stats.lose(p.path)
		p.to = nil
	}
}

// receive answers probes, takes ACKs, and posts the receives again that a poll has returned.
func (e *endpoint) receive(ctx context.Context) error {
	for {
		n, err := e.cq.PollWait(ctx, e.wcs[:])
		if err != nil {
			return err
		}
		polled, again := e.now(), e.again[:0]
		for i := range e.wcs[:n] {
			wc := &e.wcs[i]
			if wc.Status != verbs.WCSuccess {
				return wc.Err()
			}
			if e.stamps != nil {
				polled = e.stamps.at(wc.Timestamp)
			}
			if wc.Opcode != verbs.WCRecv {
				if err := e.left(wc.ID, polled); err != nil {
					return err
				}
				continue
			}
			if err := e.take(wc, polled); err != nil {
				return err
			}
			again = append(again, e.recvs[wc.ID])
		}
		if _, err := e.qp.PostRecv(again...); err != nil {
			return err
		}
	}
}

func (e *endpoint) take(wc *verbs.WC, polled int64) error {
	buf := e.mr.Bytes()[int(wc.ID)*e.room:][:wc.ByteLen]
	src, _ := wc.GRHAddrs(buf)
	m, ok := parse(buf[min(len(buf), verbs.GRHSize):])
	from := e.table.Load().from[key{src.As16(), wc.SrcQP}]
	switch {
	case !ok || !src.IsValid():
		e.bad.Add(1)
	case from == nil:
		e.unknown.Add(1)
	case m.kind != kindProbe:
		e.acked(from, m, polled)
	case len(from.to) > 0:
		return e.answer(from.to[int(m.path)%len(from.to)], m, polled)
	}
	return nil
}

// left takes the time at which the device has sent a probe or the first ACK, and sends the second.
func (e *endpoint) left(id uint64, at int64) error {
	if e.stamps == nil {
		return nil
	}
	if id&isACK == 0 {
		e.mu.Lock()
		defer e.mu.Unlock()
		if p := &e.probes[id%inFlight]; p.to != nil && p.seq&^isACK == id {
			p.sent = at
		}
		return nil
	}
	slot := id &^ isACK
	if slot >= sends { // a second ACK
		return nil
	}
	a := &e.answers[slot]
	e.free = append(e.free, slot)
	a.m.kind, a.m.delay = kindDelay, at-a.polled
	return e.ack(e.acks[1:], a.to, a.m)
}

// answer sends the ACKs of a probe: both with one doorbell, or the first, whose time the second has.
func (e *endpoint) answer(to verbs.UDAddr, m message, polled int64) error {
	e.acks[0].To = to
	m.kind, m.delay = kindACK, 0
	m.put(e.acks[0].Inline)
	if e.stamps == nil {
		m.kind, m.delay = kindDelay, e.now()-polled
		return e.ack(e.acks[:], to, m)
	}
	last := len(e.free) - 1
	if last < 0 {
		e.busy.Add(1)
		return nil
	}
	slot := e.free[last]
	e.answers[slot] = answer{to, m, polled}
	e.acks[0].ID = isACK | slot
	n, err := e.qp.PostSend(e.acks[:1]...)
	if n == 1 {
		e.free = e.free[:last]
	}
	return e.unlessFull(err)
}

func (e *endpoint) ack(wrs []verbs.SendWR, to verbs.UDAddr, second message) error {
	e.acks[1].To = to
	second.put(e.acks[1].Inline)
	_, err := e.qp.PostSend(wrs...)
	return e.unlessFull(err)
}

// unlessFull counts an answer for which the send queue has no room, which is no error.
func (e *endpoint) unlessFull(err error) error {
	if errors.Is(err, verbs.ErrQueueFull) {
		e.busy.Add(1)
		return nil
	}
	return err
}

// acked takes an ACK. With both of them the probe is answered.
func (e *endpoint) acked(from *target, m message, polled int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := &e.probes[m.seq%inFlight]
	second := m.kind == kindDelay
	if p.to == nil || p.seq != m.seq || p.to.key != from.key || second && p.delayed || !second && p.polled != 0 {
		e.stale.Add(1)
		return
	}
	if second {
		p.delayed, p.delay = true, m.delay
	} else {
		p.polled, p.handled = polled, e.now()
	}
	if !p.delayed || p.polled == 0 {
		return
	}
	if rtt := p.polled - p.sent - p.delay; rtt < 0 { // a lie
		e.bad.Add(1)
		p.to.stats.lose(p.path)
	} else {
		p.to.stats.answer(p.path, sample{rtt, p.delay, p.sent - p.due + p.handled - p.polled})
		from.answered.Store(polled)
	}
	p.to = nil
}

// update replaces the targets of a peer. Addresses that do not answer are resolved again.
func (e *endpoint) update(peer string, list []remote, probed bool, newStats func(remote string) *probeStats) {
	e.updating.Lock()
	defer e.updating.Unlock()
	if e.closed {
		return
	}
	closeAll(e.retired[peer]) // since the last update, their requests have completed
	t := e.table.Load()
	old, targets := slices.Clone(t.byPeer[peer]), []*target(nil)
	for _, r := range list {
		n := &target{key: key{r.Addr.GID, r.Addr.QPNum}, remote: r, probed: probed, stats: newStats(r.Name)}
		if n.stats == nil {
			continue
		}
		if i := slices.IndexFunc(old, func(o *target) bool { return o.key == n.key && o.QKey == n.QKey }); i >= 0 {
			o := old[i]
			n.handles, n.to = o.handles, o.to
			n.answered.Store(o.answered.Load())
			old = slices.Delete(old, i, i+1)
		}
		if e.now()-n.answered.Load() > silence || len(n.to) == 0 {
			if handles := n.handles; n.resolve(e) {
				old = append(old, &target{handles: handles})
			}
			n.answered.Store(e.now())
		}
		targets = append(targets, n)
	}
	e.retired[peer] = old
	next := &table{byPeer: maps.Clone(t.byPeer), from: map[key]*target{}}
	next.byPeer[peer] = targets
	for _, p := range e.o.peers { // the first that claims an address has it
		for _, n := range next.byPeer[p] {
			if next.from[n.key] != nil {
				continue
			}
			if next.from[n.key] = n; n.probed && len(n.to) > 0 {
				next.probed = append(next.probed, n)
			}
		}
	}
	e.table.Store(next)
}

// resolve makes handles of a target's address, each with a flow label of its own: adapters compute
// the UDP source port from it, by which switches choose a path. If it fails, the old handles stay.
func (n *target) resolve(e *endpoint) bool {
	path := n.Addr.PathFrom(e.addr)
	var handles []*uverbs.AH
	var to []verbs.UDAddr
	for i := range e.o.paths {
		path.FlowLabel = uint32(i+1) * 0x9e5 & 0xfffff
		h, err := e.pd.CreateAH(path)
		n.stats.failed(err)
		if err != nil {
			closeAll([]*target{{handles: handles}})
			return false
		}
		handles, to = append(handles, h), append(to, h.To(n.qp, n.QKey))
	}
	n.handles, n.to = handles, to
	return true
}

func (e *endpoint) closeTargets() error {
	e.updating.Lock()
	defer e.updating.Unlock()
	e.closed = true
	for _, targets := range e.table.Load().byPeer {
		closeAll(targets)
	}
	for _, targets := range e.retired {
		closeAll(targets)
	}
	return nil
}

func closeAll(targets []*target) {
	for _, t := range targets {
		for _, h := range t.handles {
			h.Close()
		}
	}
}
