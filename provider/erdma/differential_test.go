//go:build linux

package erdma

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

var (
	listsFlag    = flag.Int("lists", 40_000, "lists of requests that TestQueuesAgainstC posts; a quarter with -short")
	seedFlag     = flag.Uint64("seed", 1, "seed of TestQueuesAgainstC")
	rootFlag     = flag.String("root", "", "root file system of another Debian, whose C libraries TestQueuesAgainstC compares")
	providerFlag = flag.String("provider", "", "folder of another liberdma, for those libraries")
)

// TestQueuesAgainstC posts random lists of requests with liberdma, in a process of its own, and with
// this driver, and writes the same completions for both. All that the device would see has to be
// equal, byte for byte: queues, doorbell records, registers. So have the results of posting and
// polling. There is neither a kernel nor an adapter: the process plays them.
//
// What differs knowingly, and so is not in the lists or not compared:
//
//   - liberdma takes requests as long as one unit is free, and then overwrites requests in flight by a
//     longer one; here a queue takes as many as fit if each is of the longest;
//   - of a request that is refused, liberdma leaves a part in the free units behind the others;
//   - completions for requests that are not in flight, unless liberdma drops them as well: those for
//     other receives than the next one, and for units that begin no request;
//   - of completions with an error what is not valid;
//   - the key that a receive has invalidated, which liberdma does not return;
//   - behind a completion with an error this driver lets the device have no more requests, and
//     completes them itself: the test makes it go on;
//   - releases before 60 have no SEND that invalidates, and those before 65 leave the doorbell
//     record of a new CQ empty.
func TestQueuesAgainstC(t *testing.T) {
	x := newComparison(t)
	lists := *listsFlag
	if testing.Short() {
		lists /= 4
	}
	x.run(lists)
}

// command returns the C program's command.
func command(t testing.TB) *exec.Cmd {
	program, err := filepath.Abs("../../build/c/liberdma")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("VERBS_LAB") != "" { // nothing may be missing there
			t.Fatalf("%v: run make build/c/liberdma", err)
		}
		t.Skipf("%v: run make build/c/liberdma", err)
	}
	if *rootFlag == "" {
		return exec.Command(program)
	}
	lib := filepath.Join(*rootFlag, "usr/lib/x86_64-linux-gnu")
	path := lib + ":" + lib + "/libibverbs"
	if *providerFlag != "" {
		path = *providerFlag + ":" + path
	}
	return exec.Command(filepath.Join(*rootFlag, "lib64/ld-linux-x86-64.so.2"), "--library-path", path, program)
}

// Orders of testdata/liberdma.c, which see.
const (
	_ = iota
	orderCreate
	orderDestroy
	orderPoll
	orderArm
	orderEvent
	orderRecv
	orderSend
	orderProbe
)

// contextKinds are the kinds of registers of the C program's contexts.
var contextKinds = [...]struct{ kind, offset uint32 }{{0, 0}, {1, 0}, {1, 7}, {1, 15}, {2, 3}}

// comparison is liberdma beside the driver.
type comparison struct {
	*providertest.Comparison
	fakes []*fake
	data  []byte // for inline data

	invalidates bool // liberdma has SENDs that invalidate
	newRecords  bool // and writes the doorbell records of new CQs

	fake      *fake
	all       bool
	cap       verbs.QPCap
	signaled  int // of 10 requests
	failed    int // of 100 completions
	registers []byte
	cqs       [2]*comparedCQ
	qps       []*comparedQP
	id        uint64
	pollAll   bool // that there are

	count struct{ lists, sends, receives, completions, nothing, failures, refused, full, inline, arms, queues int }
}

type comparedCQ struct {
	*fakeCQ
	c      []byte // liberdma's
	record []byte
}

type comparedQP struct {
	*queuePair
	c        []byte // liberdma's
	record   []byte
	sent     []sentRequest
	last     uint32 // unit of the latest request that has completed
	hasLast  bool
	received int // posted, and not completed by a CQE
}

type sentRequest struct {
	put      uint32
	opcode   uint8
	signaled bool
}

func newComparison(t testing.TB) *comparison {
	x := &comparison{Comparison: providertest.NewComparison(t, command(t), "liberdma", unit)}
	x.Describe = func() string { return fmt.Sprintf("%+v", x.cap) }
	for _, k := range contextKinds {
		x.fakes = append(x.fakes, newFake(t, true, k.kind, k.offset))
	}
	x.Put(orderProbe)
	x.Do()
	x.invalidates = x.Int() != 0
	return x
}

// run compares until there are so many lists.
func (x *comparison) run(lists int) {
	start := time.Now()
	x.Each(*seedFlag, func() bool { return x.count.lists < lists }, func(i int) {
		x.create(i == 0)
		for k := 50 + x.Rand.IntN(300); k > 0 && !x.Different(); k-- {
			x.step()
		}
		x.destroy()
	})
	x.T.Logf("%+v in %v; SEND_WITH_INV %v, records of new CQs %v", x.count, time.Since(start).Round(time.Millisecond), x.invalidates, x.newRecords)
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// create makes queues of random sizes.
func (x *comparison) create(first bool) {
	r := x.Rand
	kind := r.IntN(len(contextKinds))
	x.fake = x.fakes[kind]
	x.all, x.signaled, x.failed = r.IntN(4) == 0, []int{1, 3, 5, 10}[r.IntN(4)], []int{0, 3, 30}[r.IntN(3)]
	x.cap = verbs.QPCap{MaxSendWR: 1 + r.IntN(1<<r.IntN(8)), MaxSendSGE: 1 + r.IntN(maxSendSGE), MaxRecvWR: 1 + r.IntN(1<<r.IntN(8)), MaxRecvSGE: 1}
	if r.IntN(3) > 0 {
		x.cap.MaxInline = r.IntN(maxInline + 1)
	}
	depths := [2]int{1 + r.IntN(1<<r.IntN(10)), 1 + r.IntN(1<<r.IntN(10))}
	if r.IntN(2) == 0 {
		depths[1] = 0 // that of the other
	}
	n := 1 + r.IntN(3)
	x.Put(orderCreate, uint64(kind), uint64(n), bit(x.all))
	var nums [2 + 4]uint32
	for i, depth := range depths {
		nums[i] = 1 + uint32(r.IntN(1<<20-1))
		x.Put(uint64(depth), uint64(nums[i]))
	}
	x.Put(uint64(x.cap.MaxSendWR), uint64(x.cap.MaxSendSGE), uint64(x.cap.MaxInline), uint64(x.cap.MaxRecvWR), uint64(x.cap.MaxRecvSGE))
	for i := range n {
		nums[2+i] = 1 + uint32(i+4*r.IntN(1<<18-1))
		x.Put(uint64(nums[2+i]))
	}
	x.Do()
	clear(x.fake.pages)
	x.registers = x.Mem[(3<<20)+kind*3*hardwarePage:][:3*hardwarePage]
	for i, depth := range depths {
		x.createCQ(i, depth, nums[i], first)
	}
	x.qps = nil
	for _, num := range nums[2:][:n] {
		x.createQP(num)
	}
	x.data = x.Mem[providertest.PlaceData:][:4096]
	for i := range x.data {
		x.data[i] = byte(r.Uint32())
	}
	x.count.queues += n
}

func (x *comparison) createCQ(i, depth int, num uint32, first bool) {
	place, size, cqes := x.Get(), x.Int(), x.Int()
	record := x.Place(8)
	if depth == 0 {
		x.cqs[i] = x.cqs[0]
		return
	}
	cq := &comparedCQ{fakeCQ: x.fake.cq(x.T, provider.CQInit{Depth: depth}, num), c: x.Mem[place:][:size], record: record}
	cq.c = cq.c[:min(size, cq.Cap()*cqeSize)]
	x.cqs[i] = cq
	if first && i == 0 {
		x.newRecords = le.Uint64(record) != 0
	}
	if !x.newRecords {
		clear(cq.mem)
	}
	if cqes != cq.Cap() {
		x.Differ("CQ of %d completions, and %d of liberdma", cq.Cap(), cqes)
	}
	if x.Equal("new CQs", cq.c, cq.memory()) {
		x.Equal("records of new CQs", record, cq.mem[:8])
	}
}

// memory returns a CQ's memory.
func (q *comparedCQ) memory() []byte { return q.buf.Bytes()[:q.Cap()*cqeSize] }

func (x *comparison) createQP(num uint32) {
	place, size := x.Get(), x.Int()
	record := x.Place(16)
	p, err := x.fake.newQP(&provider.QPInit{
		Type: verbs.RC, Cap: x.cap, SignalAll: x.all, SendCQ: x.cqs[0].completionQueue, RecvCQ: x.cqs[1].completionQueue,
	}, num)
	x.Check(err)
	q := &comparedQP{queuePair: p, c: x.Mem[place:][:size], record: record}
	x.qps = append(x.qps, q)
	// liberdma's receives end with a page, and the driver's with the last one.
	if len(q.c) < len(p.memory()) || !x.Equal("new queues", q.c[:len(p.memory())], p.memory()) {
		x.Differ("queues of %d and %d bytes", len(q.c), len(p.memory()))
	}
}

func (x *comparison) destroy() {
	x.Put(orderDestroy)
	x.Do()
	for _, p := range x.qps {
		p.send.Release()
		p.recv.Release()
	}
	if x.cqs[1] != x.cqs[0] {
		x.cqs[1].Release()
	}
	x.cqs[0].Release()
}

// step lets requests complete, polls, and posts a list of requests and one of receives.
func (x *comparison) step() {
	r := x.Rand
	p := x.qps[r.IntN(len(x.qps))]
	for _, q := range x.qps {
		if r.IntN(3) > 0 {
			x.completeSends(q)
		}
		for range r.IntN(1 << r.IntN(6)) {
			x.completeRecv(q)
		}
	}
	if r.IntN(4) == 0 {
		x.completeNothing(x.qps[r.IntN(len(x.qps))])
	}
	// liberdma gets all orders at once.
	var compare []func()
	for i := range x.cqs {
		if i == 0 || x.cqs[1] != x.cqs[0] {
			n := 1 + r.IntN(64)
			if x.pollAll {
				n = 64
			}
			compare = append(compare, x.poll(i, n))
			if r.IntN(8) == 0 {
				compare = append(compare, x.arm(i))
			}
		}
	}
	x.pollAll = false
	for _, q := range x.qps { // go on after an error
		q.send.refusing.Store(0)
		q.recv.refusing.Store(0)
	}
	compare = append(compare, x.postRecv(p), x.postSend(p))
	x.Do()
	for _, f := range compare {
		if !x.Different() {
			f()
		}
	}
	if !x.Different() {
		x.compareAll()
	}
}

// compareAll compares all that the device sees.
func (x *comparison) compareAll() {
	for _, p := range x.qps {
		if !x.Equal("queues", p.c[:len(p.memory())], p.memory()) || !x.Equal("doorbell records", p.record, p.queuePair.record[:16]) {
			return
		}
	}
	for _, q := range x.cqs {
		if !x.Equal("CQs", q.c, q.memory()) || !x.Equal("CQ's doorbell records", q.record, q.mem[:8]) {
			return
		}
	}
	page := os.Getpagesize()
	for i, what := range []string{"registers of sends", "registers of receives", "registers of CQs"} {
		if !x.Equal(what, x.registers[i*hardwarePage:][:hardwarePage], x.fake.pages[i*page:][:hardwarePage]) {
			return
		}
	}
}

// give writes a completion for both.
func (q *comparedCQ) give(e [cqeSize]byte) {
	q.write(q.at(q.pi), e)
	q.write(unsafe.Pointer(&q.c[int(q.pi&q.mask)*cqeSize]), e)
	q.pi++
}

// full reports whether the device would have no place for a completion.
func (q *comparedCQ) full() bool { return q.pi-q.next > q.mask }

// random returns a CQE with random contents where the device says nothing.
func (x *comparison) random(recv bool, opcode uint8, index, num uint32, fails bool) [cqeSize]byte {
	r := x.Rand
	var syndrome uint8
	if fails {
		x.count.failures++
		if syndrome = uint8(1 + r.IntN(16)); r.IntN(10) == 0 {
			syndrome = uint8(1 + r.IntN(255))
		}
	}
	if r.IntN(4) == 0 {
		opcode = uint8(r.IntN(numOpcodes)) // liberdma reads memory behind its table for others
	}
	e := cqe{recv: recv, opcode: opcode, syndrome: syndrome, index: index, num: num, imm: r.Uint32(), length: r.Uint32()}.bytes()
	for i := 20; i < cqeSize; i++ {
		e[i] = byte(r.Uint32())
	}
	e[0] |= byte(r.Uint32()) & 0x7f
	return e
}

// completeSends completes some of a QP's requests.
func (x *comparison) completeSends(p *comparedQP) {
	n := x.Rand.IntN(len(p.sent) + 1)
	for i, s := range p.sent[:n] {
		fails := x.Rand.IntN(100) < x.failed
		if !fails && !s.signaled && i < n-1 {
			continue
		}
		if x.cqs[0].full() {
			n = i
			break
		}
		x.cqs[0].give(x.random(false, s.opcode, s.put&indexMask, p.num, fails))
		p.last, p.hasLast = s.put, true
	}
	p.sent = p.sent[n:]
}

// completeRecv completes a QP's next receive.
func (x *comparison) completeRecv(p *comparedQP) {
	q := x.cqs[1]
	if p.received == 0 || q.full() {
		return
	}
	index := p.recv.put - uint32(p.received)
	p.received--
	q.give(x.random(true, []uint8{opRecv, opRecvImm, opRecvInv, opRecvSendImm}[x.Rand.IntN(4)], index&indexMask, p.num, x.Rand.IntN(100) < x.failed))
}

// completeNothing writes a completion that both have to drop: for a QP that there is not, again for
// the latest request that has completed, or for a unit before that.
func (x *comparison) completeNothing(p *comparedQP) {
	q, r := x.cqs[0], x.Rand
	if q.full() {
		return
	}
	index, num := r.Uint32(), uint32(r.IntN(1<<24)) // liberdma's table ends there
	switch what := r.IntN(3); {
	case what == 0 && p.hasLast && q.pi-q.next < 64:
		// liberdma looks into the request, which must not have been overwritten when it does.
		if p.send.put-p.last+maxUnits > p.send.mask+1 {
			return
		}
		index, num, x.pollAll = p.last&indexMask, p.num, true
	case what == 1 && p.hasLast:
		index, num = (p.last-2*maxUnits-uint32(r.IntN(2000)))&indexMask, p.num
	case slices.ContainsFunc(x.qps, func(p *comparedQP) bool { return p.num == num }):
		return
	}
	x.count.nothing++
	q.give(x.random(num != p.num && r.IntN(2) == 0, uint8(r.IntN(numOpcodes)), index, num, r.IntN(4) == 0))
}

// poll polls a CQ. It returns what compares the completions with liberdma's, as do those below.
func (x *comparison) poll(i, n int) (compare func()) {
	x.Put(orderPoll, uint64(i), uint64(n))
	wcs := make([]verbs.WC, n)
	wcs = wcs[:provider.Poll(x.cqs[i], wcs)]
	return func() { x.comparePoll(x.cqs[i], wcs) }
}

func (x *comparison) comparePoll(q *comparedCQ, wcs []verbs.WC) {
	if got := x.Int(); got != len(wcs) {
		x.Differ("liberdma polls %d completions, Go %d of those from %d to %d", got, len(wcs), q.next, q.pi)
		return
	}
	for i := range wcs {
		g := wcs[i]
		c := verbs.WC{ID: x.Get(), Status: verbs.WCStatus(x.Get()), Opcode: verbs.WCOpcode(x.Get()), VendorErr: uint32(x.Get()), ByteLen: uint32(x.Get())}
		ex := uint32(x.Get())
		c.QPNum = uint32(x.Get())
		if c.Flags = verbs.WCFlags(x.Get()); c.Flags&verbs.WCWithImm != 0 {
			provider.SetImm(&c, be.Uint32(le.AppendUint32(nil, ex)))
		}
		if c.Status != verbs.WCSuccess {
			c = verbs.WC{ID: c.ID, Status: c.Status, VendorErr: c.VendorErr, QPNum: c.QPNum, Opcode: g.Opcode}
		}
		if g.Flags&verbs.WCWithInv != 0 {
			provider.SetInvalidatedRKey(&c, g.InvalidatedRKey())
		}
		if c != g {
			x.Differ("completion %d of %d is %+v in liberdma, and here %+v", i, len(wcs), c, g)
			return
		}
	}
	x.count.completions += len(wcs)
}

// arm requests an event, perhaps after one.
func (x *comparison) arm(i int) (compare func()) {
	q, solicited := x.cqs[i], x.Rand.IntN(2) == 0
	if x.Rand.IntN(2) == 0 {
		x.Put(orderEvent, uint64(i))
		q.CountEvent()
	}
	x.Put(orderArm, uint64(i), bit(solicited))
	x.Check(q.Arm(solicited))
	x.count.arms++
	return func() {
		if x.Int() != 0 {
			x.T.Fatal("ibv_req_notify_cq failed")
		}
	}
}

// postRecv posts a list of receives.
func (x *comparison) postRecv(p *comparedQP) (compare func()) {
	r, q := x.Rand, p.recv
	wrs := make([]verbs.RecvWR, 1+r.IntN(1<<r.IntN(6)))
	for i := range wrs {
		x.id++
		wrs[i] = verbs.RecvWR{ID: x.id}
		if r.IntN(6) > 0 {
			wrs[i].SGL = []verbs.SGE{{Addr: r.Uint64(), Length: r.Uint32() >> r.IntN(32), LKey: r.Uint32()}}
		}
	}
	if r.IntN(30) == 0 { // too many elements
		wrs[r.IntN(len(wrs))].SGL = make([]verbs.SGE, 2)
	}
	x.Put(orderRecv, uint64(slices.Index(x.qps, p)), uint64(len(wrs)))
	for _, w := range wrs {
		x.Put(w.ID)
		x.PutSGL(w.SGL)
	}
	return func() {
		posted, err := q.Post(wrs)
		if got := x.Int(); got != posted {
			x.Differ("liberdma posts %d receives of %d, Go %d: %v", got, len(wrs), posted, err)
			return
		}
		if posted < len(wrs) {
			if err == verbs.ErrQueueFull {
				x.count.full++
			} else {
				x.count.refused++
				x.copyFree(p.c, p.memory(), int(p.memoryOfRecvs())+int(q.put&q.mask)*unit, unit)
			}
		}
		x.count.lists++
		x.count.receives += posted
		p.received += posted
	}
}

// memoryOfRecvs returns where the receives begin.
func (p *queuePair) memoryOfRecvs() uintptr { return uintptr(p.recv.base) - uintptr(p.send.base) }

// copyFree copies what liberdma has left of a refused request in a free place.
func (x *comparison) copyFree(c, g []byte, at, n int) { copy(g[at:at+n], c[at:at+n]) }

// request returns a random request, and the list that liberdma has for inline data.
func (x *comparison) request() (w verbs.SendWR, inline []verbs.SGE) {
	r := x.Rand
	ops := []verbs.Opcode{verbs.OpSend, verbs.OpSendImm, verbs.OpRDMAWrite, verbs.OpRDMAWriteImm, verbs.OpRDMARead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpSendInv}
	if !x.invalidates {
		ops = ops[:7]
	}
	x.id++
	w = verbs.SendWR{ID: x.id, Opcode: ops[r.IntN(len(ops))], Imm: r.Uint32(), RemoteAddr: r.Uint64(), RKey: r.Uint32()}
	args := &verbs.SendArgs{CompareAdd: r.Uint64(), Swap: r.Uint64()}
	if r.IntN(10) < x.signaled {
		w.Flags |= verbs.SendSignaled
	}
	w.Flags |= verbs.SendFlags(r.IntN(2))*verbs.SendSolicited | verbs.SendFlags(r.IntN(2))*verbs.SendFence
	sge := func() verbs.SGE {
		return verbs.SGE{Addr: r.Uint64(), Length: r.Uint32() >> (3 + r.IntN(29)), LKey: r.Uint32()}
	}
	switch {
	case w.Opcode == verbs.OpCompareSwap || w.Opcode == verbs.OpFetchAdd:
		s := sge()
		s.Length = 8
		w.SGL, w.Args = []verbs.SGE{s}, args
	case w.Opcode == verbs.OpRDMARead:
		if w.SGL = []verbs.SGE{sge()}; r.IntN(8) == 0 {
			w.SGL = nil
		}
	case r.IntN(2) == 0:
		left := x.cap.MaxInline
		for i := range 1 + r.IntN(x.cap.MaxSendSGE+2) {
			n := r.IntN(left + 1)
			left -= n
			at := r.IntN(len(x.data) - n)
			if b := x.data[at:][:n]; i == 0 && r.IntN(3) > 0 {
				w.Inline = b
			} else {
				if w.Args == nil {
					w.Args = args
				}
				args.InlineList = append(args.InlineList, b)
			}
			inline = append(inline, verbs.SGE{Addr: uint64(providertest.PlaceData + at), Length: uint32(n)})
			if r.IntN(2) == 0 {
				break
			}
		}
		if !provider.HasInline(&w) {
			inline = nil // an empty piece is none
		}
	default:
		w.SGL = make([]verbs.SGE, r.IntN(x.cap.MaxSendSGE+1))
		for i := range w.SGL {
			w.SGL[i] = sge()
		}
	}
	return w, inline
}

// postSend posts a list of requests. liberdma gets those for which this driver has room.
func (x *comparison) postSend(p *comparedQP) (compare func()) {
	r, q := x.Rand, p.send
	room := int(q.most - (q.head.Load() - q.tail.Load()))
	n := 1 + r.IntN(1<<r.IntN(6))
	wrs, pieces := make([]verbs.SendWR, n), make([][]verbs.SGE, n)
	for i := range wrs {
		wrs[i], pieces[i] = x.request()
		if pieces[i] != nil {
			x.count.inline++
		}
	}
	switch i := r.IntN(n); r.IntN(60) {
	case 0: // too many elements
		wrs[i] = verbs.SendWR{ID: wrs[i].ID, Opcode: verbs.OpSend, SGL: make([]verbs.SGE, maxSendSGE+1)}
		pieces[i] = nil
	case 1: // too much data
		wrs[i].Opcode, wrs[i].SGL, wrs[i].Args = verbs.OpRDMAWrite, nil, &verbs.SendArgs{InlineList: [][]byte{x.data[:40], x.data[:70]}}
		wrs[i].Inline = nil
		pieces[i] = []verbs.SGE{{Addr: providertest.PlaceData, Length: 40}, {Addr: providertest.PlaceData, Length: 70}}
	case 2: // no such opcode
		wrs[i].Opcode = verbs.OpLocalInv
	}
	given := min(n, room)
	if given == 0 {
		return func() { x.compareSend(p, wrs, given) }
	}
	x.Put(orderSend, uint64(slices.Index(x.qps, p)), uint64(given))
	for i := range wrs[:given] {
		w := &wrs[i]
		list, flags, args := w.SGL, w.Flags, provider.Args(w)
		if pieces[i] != nil {
			list, flags = pieces[i], flags|provider.SendInline
		}
		x.Put(w.ID, uint64(w.Opcode-1), uint64(flags), uint64(w.Imm), uint64(w.RKey), w.RemoteAddr, args.CompareAdd, args.Swap)
		x.PutSGL(list)
	}
	return func() { x.compareSend(p, wrs, given) }
}

func (x *comparison) compareSend(p *comparedQP, wrs []verbs.SendWR, given int) {
	q := p.send
	first := q.put
	posted, err := q.Post(wrs)
	got := 0
	if given > 0 {
		got = x.Int()
	}
	if got != posted {
		x.Differ("liberdma posts %d requests of %d, Go %d of %d: %v", got, given, posted, len(wrs), err)
		return
	}
	switch {
	case posted < given:
		x.count.refused++
		for i := range uint32(maxUnits) {
			x.copyFree(p.c, p.memory(), int((q.put+i)&q.mask)*unit, unit)
		}
	case posted < len(wrs):
		x.count.full++
		if err != verbs.ErrQueueFull {
			x.Differ("the queue is full: %v", err)
		}
	}
	x.count.lists++
	x.count.sends += posted
	for i := range wrs[:posted] {
		h := le.Uint64(unsafe.Slice((*byte)(q.at(first)), 8))
		p.sent = append(p.sent, sentRequest{first, uint8(h >> headerOpcode & 31), q.SignalAll || wrs[i].Flags&verbs.SendSignaled != 0})
		first += uint32(h>>headerUnits&7) + 1
	}
	if first != q.put {
		x.T.Fatal("requests do not end where the next begins")
	}
}
