package verbstest

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"time"

	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft"
)

// packet is a packet on the way to one receiver.
type packet struct {
	header
	to      netip.AddrPort // dst, or a member of that group
	section int
}

// header is what stays of a packet in the trace.
type header struct {
	number   uint64
	sent     time.Duration
	src, dst netip.AddrPort
	tos      uint8
	data     []byte
}

// event is something that will happen: a packet arrives, a slow receiver takes the next packet, or,
// without either, the packets of a step are judged.
type event struct {
	at     time.Duration
	packet *packet
	port   *port
}

// schedule has the events that will happen, the first one first.
type schedule struct {
	events []event
	timer  *time.Timer
	wake   time.Duration // when the timer fires, if it is not nil
}

// at schedules an event, behind others of the same time. The caller holds n.mu.
func (n *Network) at(at time.Duration, e event) {
	e.at = at
	s := &n.schedule
	i := sort.Search(len(s.events), func(i int) bool { return s.events[i].at > at })
	s.events = slices.Insert(s.events, i, e)
}

// arm sets the timer for the first event. The caller holds n.mu.
func (n *Network) arm() {
	s := &n.schedule
	if len(s.events) == 0 || n.closed || s.timer != nil && s.wake <= s.events[0].at {
		return
	}
	if s.timer != nil {
		s.timer.Stop()
	}
	s.wake = s.events[0].at
	s.timer = time.AfterFunc(s.wake-n.now(), n.tick)
}

func (n *Network) tick() {
	n.judging.Lock()
	defer n.judging.Unlock()
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.now()
	if n.schedule.wake <= now {
		n.schedule.timer = nil
	}
	n.run(now)
	n.deliver()
	n.arm()
}

// run handles the events until now. The caller holds n.judging and n.mu.
func (n *Network) run(now time.Duration) {
	for s := &n.schedule; len(s.events) > 0 && s.events[0].at <= now; {
		e := s.events[0]
		s.events[0], s.events = event{}, s.events[1:]
		switch {
		case e.packet != nil:
			n.arrive(e.packet)
		case e.port != nil:
			e.port.serve(e.at)
		default:
			n.judgeStaged(e.at)
		}
	}
}

// send copies a packet and stages or judges it. The caller holds n.judging and n.mu.
func (n *Network) send(p *port, sent *soft.Packet, now time.Duration) *soft.TooLargeError {
	if !sent.Dst.Addr().IsMulticast() {
		pk := n.newPacket(p, sent, sent.Dst, now)
		if size := ipSize(pk); size > n.opt.MTU {
			n.record(pk)
			n.drop(pk, "larger than the MTU")
			return &soft.TooLargeError{Err: fmt.Errorf("verbstest: send from %v to %v: a packet of %d bytes is larger than the MTU %d", p.addr, sent.Dst, size, n.opt.MTU)}
		}
		n.stage(pk, now)
		return nil
	}
	var members []netip.AddrPort
	for addr, member := range n.ports {
		if addr.Port() == sent.Dst.Port() && member.groups[sent.Dst.Addr()] {
			members = append(members, addr)
		}
	}
	slices.SortFunc(members, netip.AddrPort.Compare)
	for _, member := range members {
		n.stage(n.newPacket(p, sent, member, now), now)
	}
	return nil
}

func (n *Network) newPacket(p *port, sent *soft.Packet, to netip.AddrPort, now time.Duration) *packet {
	pk := n.empty()
	pk.sent, pk.src, pk.dst, pk.to, pk.tos = now, p.addr, sent.Dst, to, sent.TOS
	pk.data = append(pk.data[:0], sent.Data...)
	return pk
}

// empty returns a packet, with memory of an earlier one.
func (n *Network) empty() *packet {
	last := len(n.free) - 1
	if last < 0 {
		return new(packet)
	}
	pk := n.free[last]
	n.free = n.free[:last]
	return pk
}

// stage judges a packet, or keeps it until the end of the step.
func (n *Network) stage(pk *packet, now time.Duration) {
	if n.step == 0 {
		n.judge(pk, now)
		return
	}
	f := n.flow(pk)
	pk.section = f.section
	if isMAD(pk.data) {
		pk.section = f.section + 1
		f.section += 2
	}
	n.staged = append(n.staged, pk)
	if len(n.staged) == 1 {
		n.at(now+n.step, event{})
	}
}

// judgeStaged judges the packets that have been sent before now. Those sent at this moment wait
// for the next step, so that the order does not depend on which goroutine is faster.
func (n *Network) judgeStaged(now time.Duration) {
	ripe := slices.DeleteFunc(slices.Clone(n.staged), func(pk *packet) bool { return pk.sent >= now })
	n.staged = slices.DeleteFunc(n.staged, func(pk *packet) bool { return pk.sent < now })
	if len(n.staged) > 0 {
		n.at(now+n.step, event{})
	}
	sortStaged(ripe)
	for _, pk := range ripe {
		n.judge(pk, now)
	}
}

// sortStaged sorts the packets of a step, so that their order does not depend on the order in which
// the goroutines of a test have run. Between two addresses, packets may be sorted by QP, as RDMA
// orders only the packets of one, and answers come before requests, but a management datagram stays
// behind all packets that were sent before it.
func sortStaged(pkts []*packet) {
	slices.SortStableFunc(pkts, func(a, b *packet) int {
		return cmp.Or(
			cmp.Compare(a.sent, b.sent), a.src.Compare(b.src), a.dst.Compare(b.dst), a.to.Compare(b.to),
			cmp.Compare(a.section, b.section), cmp.Compare(destQP(a.data), destQP(b.data)), cmp.Compare(requests(a.data), requests(b.data)))
	})
}

func destQP(data []byte) uint32 {
	if len(data) < roce.BTHSize {
		return 0
	}
	return binary.BigEndian.Uint32(data[4:]) & 0xffffff
}

func isMAD(data []byte) bool { return destQP(data) == roce.GSIQP }

func requests(data []byte) int {
	if len(data) > 0 && roce.Opcode(data[0]).Has(roce.IsResponse) {
		return 0
	}
	return 1
}

// flow returns the state of a packet's direction.
func (n *Network) flow(pk *packet) *flow {
	d := direction{pk.src.Addr(), pk.to.Addr()}
	f := n.flows[d]
	if f == nil {
		from, to, hash := d.from.As16(), d.to.As16(), fnv.New64a()
		hash.Write(append(from[:], to[:]...))
		f = &flow{random: rand.New(rand.NewPCG(n.opt.Seed, hash.Sum64()))}
		n.flows[d] = f
	}
	return f
}

// judge decides what happens to a packet that is sent now. The caller holds n.judging and n.mu,
// which is released during the filter's call.
func (n *Network) judge(pk *packet, now time.Duration) {
	n.record(pk)
	f := n.flow(pk)
	c := draw(f.random)
	var act Action
	if filter := n.opt.Filter; filter != nil {
		view := &n.trace.viewed
		view.decode(&pk.header)
		n.unlocked(func() { act = filter(view) })
	}
	d := direction{pk.src.Addr(), pk.to.Addr()}
	l, ok := n.links[d]
	if !ok {
		l = n.opt.Link
	}
	var v verdict
	switch {
	case act.Drop:
		v.drop = "filter"
	case n.separated(d):
		v.drop = "partition"
	default:
		v = f.decide(l, act, c, pk, now, n.step)
	}
	n.execute(v, pk, now)
}

// chances are random numbers, one for each probability of a link.
type chances struct {
	loss, duplicate, corrupt, reorder, jitter float64
	bit                                       uint64 // to change
}

// draw takes the same number of random numbers for each packet, so that a change of one probability
// does not change the others' results.
func draw(r *rand.Rand) chances {
	return chances{r.Float64(), r.Float64(), r.Float64(), r.Float64(), r.Float64(), r.Uint64()}
}

type verdict struct {
	drop      string // why, or ""
	due       time.Duration
	overtaken time.Duration // the part of the delay in which later packets overtake it
	reordered bool          // by the link
	copies    int
	corrupt   bool
	bit       uint64
}

// decide returns what a link does to a packet for which the filter said act. It changes only the
// flow.
func (f *flow) decide(l Link, act Action, c chances, pk *packet, now, step time.Duration) verdict {
	if c.loss < l.Loss {
		return verdict{drop: "loss"}
	}
	depart, ok := f.depart(l, now, ipSize(pk))
	if !ok {
		return verdict{drop: "link queue is full"}
	}
	v := verdict{
		overtaken: max(act.Delay, 0), reordered: c.reorder < l.Reorder,
		copies: act.Copies, corrupt: act.Corrupt || c.corrupt < l.Corrupt, bit: c.bit,
	}
	if v.reordered {
		v.overtaken += ReorderDelay
	}
	if c.duplicate < l.Duplicate {
		v.copies++
	}
	v.due = max(depart, pk.sent) + l.Delay + time.Duration(c.jitter*float64(l.Jitter))
	if step > 0 {
		v.due -= min(l.Delay, now-pk.sent) // The step is part of the delay.
	}
	v.due = max(v.due, f.last, now)
	if v.overtaken == 0 {
		f.last = v.due
	}
	v.due += v.overtaken
	return v
}

// execute carries out a verdict.
func (n *Network) execute(v verdict, pk *packet, now time.Duration) {
	if v.drop != "" {
		n.drop(pk, v.drop)
		return
	}
	if v.reordered {
		n.stats.Reordered++
	}
	if v.overtaken > 0 {
		n.note(pk, "delayed by %v", v.overtaken)
	}
	for range v.copies {
		n.stats.Duplicated++
		n.note(pk, "duplicated")
		n.forward(n.copyOf(pk), v.due, now)
	}
	if v.corrupt {
		n.stats.Corrupted++
		n.note(pk, "bit %d changed", corrupt(pk.data, v.bit))
	}
	n.forward(pk, v.due, now)
}

// unlocked calls f without n.mu, and locks it again even if f panics or ends the test.
func (n *Network) unlocked(f func()) {
	n.mu.Unlock()
	defer n.mu.Lock()
	f()
}

// depart returns when a link has sent a packet.
func (f *flow) depart(l Link, now time.Duration, size int) (time.Duration, bool) {
	if l.Bandwidth <= 0 {
		return now, true
	}
	gone := 0
	for gone < len(f.departing) && f.departing[gone] <= now {
		gone++
	}
	f.departing = append(f.departing[:0], f.departing[gone:]...)
	if l.Queue > 0 && len(f.departing) > l.Queue { // One is being sent.
		return 0, false
	}
	took := time.Duration(float64(size) * 8 / float64(l.Bandwidth) * float64(time.Second))
	f.idle = max(f.idle, now) + took
	f.departing = append(f.departing, f.idle)
	return f.idle, true
}

// corrupt changes a bit that the ICRC covers, and returns its number.
func corrupt(data []byte, random uint64) uint64 {
	if len(data) == 0 {
		return 0
	}
	const first, end = 4 * 8, 5 * 8 // FECN, BECN and reserved bits
	bits := uint64(len(data)) * 8
	bit := random % bits
	if bit >= first && bit < end {
		bit = (bit + end) % bits
	}
	data[bit/8] ^= 0x80 >> (bit % 8)
	return bit
}

func (n *Network) copyOf(pk *packet) *packet {
	c := n.empty()
	data := append(c.data[:0], pk.data...)
	*c = *pk
	c.data = data
	return c
}

func (n *Network) forward(pk *packet, due, now time.Duration) {
	if due <= now {
		n.arrive(pk)
		return
	}
	n.at(due, event{packet: pk})
}

// arrive hands a packet to its receiver.
func (n *Network) arrive(pk *packet) {
	p := n.ports[pk.to]
	switch {
	case n.separated(direction{pk.src.Addr(), pk.to.Addr()}):
		n.drop(pk, "partition")
	case p == nil:
		n.drop(pk, "no device has the address")
	default:
		p.put(pk)
	}
}

func (n *Network) drop(pk *packet, why string) {
	n.stats.Dropped++
	n.note(pk, "dropped: %s", why)
	n.free = append(n.free, pk)
}

func ipSize(pk *packet) int {
	if pk.dst.Addr().Is4() {
		return 20 + 8 + len(pk.data)
	}
	return 40 + 8 + len(pk.data)
}
