//go:build linux

package mlx5

import (
	"cmp"
	"encoding/binary"
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
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/providertest"
)

var (
	listsFlag = flag.Int("lists", 0, "lists of requests that TestQueuesAgainstC posts with each kind of registers (default 5,000 on an adapter and 20,000 without); a fifth with -short")
	seedFlag  = flag.Uint64("seed", 1, "seed of TestQueuesAgainstC")
	typeFlag  = flag.String("type", "", "the only type of QPs in TestQueuesAgainstC, such as DCI")
)

// TestQueuesAgainstC posts random lists of requests with libmlx5, in a process of its own, and with
// this driver, and writes the same completions for both. All that the device would see has to be
// equal, byte for byte: queues, doorbell records, registers. So have the results of posting and
// polling.
//
// What differs knowingly, and so is not in the lists or not compared:
//
//   - libmlx5's send queues have room for binding memory windows: they get the same length
//     here, and so many requests as fit in libmlx5's;
//   - libmlx5 leaves those fields of a window's key as they were in the queue that the request does not
//     change: here they are 0;
//   - behind a request that has been refused, libmlx5 forgets whether the next one has to wait for a UMR
//     request, or lets it wait for the refused one;
//   - libmlx5 posts empty elements to SRQs, where the device takes them for 2 GiB;
//   - receives of an SRQ are used again in another order;
//   - libmlx5 stores only the first 8 bytes of a request without data to a register;
//   - requests that libmlx5 posts though the device refuses them: too long ones, those of an opcode that
//     the type of QP does not have, reads with inline data, windows of type 2 without a length;
//   - the functions that libmlx5 has for a DCI leave the immediate of requests that have none as it was
//     in the queue, and post all of a list or nothing, so that the C program tries shorter ones; they bind no windows of type 1;
//   - of completions with an error the fields that are not valid, of those of requests IBV_WC_WITH_IMM, and
//     of receives what names a datagram's sender, if it is none.
//
// There is neither a kernel nor an adapter: the process plays them. In a lab with an adapter the kernel's
// driver answers, and the libmlx5 of the lab's userland is compared.
func TestQueuesAgainstC(t *testing.T) {
	if !mmap.OrdersDevice {
		t.Skip("mlx5 does not run on this architecture")
	}
	program, err := filepath.Abs("../../build/c/libmlx5")
	if err != nil {
		t.Fatal(err)
	}
	inLab := os.Getenv("VERBS_LAB") != ""
	if _, err := os.Stat(program); err != nil {
		if inLab { // nothing may be missing there
			t.Fatalf("%v: run make build/c/libmlx5", err)
		}
		t.Skipf("%v: run make build/c/libmlx5", err)
	}
	library, _ := filepath.EvalSymlinks("/usr/lib/x86_64-linux-gnu/libmlx5.so.1")
	t.Log(filepath.Base(library))
	devices, _ := filepath.Glob("/sys/class/infiniband/mlx5_*")
	lists := 5_000 // in a slow machine
	if !inLab || len(devices) == 0 {
		devices, lists = []string{"deaf-ib", "deaf-roce"}, 20_000
	}
	lists = cmp.Or(*listsFlag, lists)
	if testing.Short() {
		lists /= 5
	}
	for _, dev := range devices {
		for _, off := range []string{"0", "1"} {
			name := filepath.Base(dev)
			t.Run(fmt.Sprintf("%s, %s=%s", name, shutUpBlueFlame, off), func(t *testing.T) {
				newComparison(t, program, name, shutUpBlueFlame+"="+off).run(lists)
			})
		}
	}
}

// Orders to testdata/libmlx5.c, which see. 0 ends a list of them.
const (
	orderCreate = iota + 1
	orderDestroy
	orderGIDs
	orderHandle
	orderPoll
	orderArm
	orderRecv
	orderSend
	orderReset
	orderResize
)

// comparison is libmlx5 beside the driver.
type comparison struct {
	*providertest.Comparison
	fake               *fake
	gids               []gidEntry
	data               []byte                  // for inline data
	regs               map[*byte]*comparedRegs // by libmlx5's
	lists, completions int                     // compared
	requests           map[verbs.QPType]int    // compared, receives too

	types    []verbs.QPType // to choose from
	typ      verbs.QPType
	key      uint64 // of a DCI's targets
	all      bool
	cap      verbs.QPCap
	signaled int // of 10 requests
	failed   int // of 100 completions
	cqs      [2]*comparedCQ
	qps      []*comparedQP
	srq      *comparedSRQ
	handles  []handle
	id       uint64
	draining bool // CQs, after a reset
}

type gidEntry struct {
	index uint8
	typ   verbs.GIDType
	gid   verbs.GID
}

type handle struct {
	*addressHandle
	index uint64 // libmlx5's
}

// comparedRegs is a register of libmlx5, with both halves, and what is one here.
type comparedRegs struct {
	c, g []byte
	reg  *register
	used bool // so that it is known which half is next
}

type comparedCQ struct {
	*completionQueue
	num         uint32
	ring        cqes // of this driver, as the device sees it
	pi          uint32
	c           cqes // of libmlx5
	record, uar []byte
	resized     int
}

type comparedQP struct {
	*queuePair
	index    uint32 // libmlx5's
	room     uint32 // for requests
	recvs    []byte // libmlx5's
	sends    []byte
	record   []byte
	regs     *comparedRegs
	sent     []sentRequest
	received int // posted, and not completed by a CQE
	dropped  int // receives of the SRQ with a CQE that has not been polled
}

type sentRequest struct {
	block    uint16
	opcode   uint8
	signaled bool
}

type comparedSRQ struct {
	*recvQueue
	mem, record []byte
	stride      int
	head        int // libmlx5's next
	free        int
	inFlight    [][2]uint16 // libmlx5's index, and this driver's
}

func newComparison(t testing.TB, program, device, env string) *comparison {
	cmd := exec.Command(program, device)
	// libmlx5 writes completions with errors to that file.
	cmd.Env = append(os.Environ(), "MLX5_DEBUG_FILE=/dev/null", env)
	x := &comparison{
		Comparison: providertest.NewComparison(t, cmd, "libmlx5", block), fake: newFake(t, Driver{}), regs: map[*byte]*comparedRegs{}, requests: map[verbs.QPType]int{},
		types: []verbs.QPType{verbs.RC, verbs.UC, verbs.UD, verbs.DCI},
	}
	x.Describe = func() string {
		return fmt.Sprintf("%v, %+v, CQEs of %d bytes, SRQ %v", x.typ, x.cap, 1<<x.cqs[0].ring.shift, x.srq != nil)
	}
	if *typeFlag != "" {
		if x.types = slices.DeleteFunc(x.types, func(typ verbs.QPType) bool { return typ.String() != *typeFlag }); len(x.types) == 0 {
			t.Fatalf("-type %s: not RC, UC, UD or DCI", *typeFlag)
		}
	}
	x.Put(orderGIDs)
	x.Do()
	x.fake.dev.Port.LinkLayer = verbs.LinkInfiniBand
	if x.Int() != 0 {
		x.fake.dev.Port.LinkLayer = verbs.LinkEthernet
	}
	for x.Int() != 0 {
		e := gidEntry{index: uint8(x.Get()), typ: verbs.GIDType(x.Get())}
		copy(e.gid[:], x.Bytes(16))
		x.gids = append(x.gids, e)
	}
	if len(x.gids) == 0 {
		t.Fatal("there are no GIDs")
	}
	return x
}

// run compares until there are so many lists.
func (x *comparison) run(lists int) {
	start := time.Now()
	queues := map[verbs.QPType]int{}
	x.Each(*seedFlag, func() bool { return x.lists < lists }, func(i int) {
		steps := 100 + x.Rand.IntN(max(400, lists/200))
		x.typ = x.types[x.Rand.IntN(len(x.types))]
		if i < len(x.types) { // each type comes first once, for few steps, so that a short run has all
			x.typ, steps = x.types[i], min(steps, max(50, lists/10))
		}
		x.create()
		queues[x.typ] += len(x.qps)
		for ; steps > 0 && !x.Different(); steps-- {
			x.step()
		}
		x.destroy()
	})
	for _, typ := range x.types {
		if queues[typ] == 0 || x.requests[typ] == 0 {
			x.T.Errorf("no request of %v has been compared", typ)
		}
	}
	x.T.Logf("%d lists of %v requests, %d completions, QPs %v, %v", x.lists, x.requests, x.completions, queues, time.Since(start).Round(time.Millisecond))
}

// create makes queues of random sizes.
func (x *comparison) create() {
	r := x.Rand
	x.key = r.Uint64()
	x.all, x.signaled, x.failed = r.IntN(4) == 0, []int{1, 3, 5, 10}[r.IntN(4)], []int{0, 3, 30}[r.IntN(3)]
	size := smallCQE << r.IntN(2)
	x.fake.bounds.cqeSize = size
	x.cap = verbs.QPCap{MaxSendWR: 1 + r.IntN(1<<r.IntN(8)), MaxSendSGE: 1 + r.IntN(12), MaxRecvWR: 1 + r.IntN(1<<r.IntN(8)), MaxRecvSGE: 1 + r.IntN(10)}
	if r.IntN(3) > 0 {
		x.cap.MaxInline = r.IntN(1 << r.IntN(9))
	}
	depths := [2]int{1 + r.IntN(1<<r.IntN(9)), 1 + r.IntN(1<<r.IntN(9))}
	if r.IntN(2) == 0 {
		depths[1] = 0 // that of the other
	}
	srq := 0
	if r.IntN(3) == 0 {
		srq = 1 + r.IntN(1<<r.IntN(8))
	}
	n := 1 + r.IntN(3)
	if x.typ == verbs.DCI {
		srq, x.cap.MaxRecvWR, x.cap.MaxRecvSGE = 0, 0, 0
	}
	x.Put(orderCreate, uint64(n), uint64(x.typ), bit(x.all), uint64(size), uint64(depths[0]), uint64(depths[1]), uint64(srq), uint64(x.cap.MaxRecvSGE))
	x.Put(uint64(x.cap.MaxSendWR), uint64(x.cap.MaxSendSGE), uint64(x.cap.MaxInline), uint64(x.cap.MaxRecvWR), uint64(x.cap.MaxRecvSGE), x.key)
	x.Do()
	for i, depth := range depths {
		x.createCQ(i, depth, size)
	}
	x.srq = nil
	if srq > 0 {
		x.createSRQ(srq)
	}
	x.qps = nil
	for range n {
		x.createQP()
	}
	x.data = x.Mem[providertest.PlaceData:][:4096]
	for i := range x.data {
		x.data[i] = byte(r.Uint32())
	}
	x.handles = nil
	if x.addressed() {
		for range 16 {
			x.createAH()
		}
	}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (x *comparison) createCQ(i, depth, size int) {
	if depth == 0 {
		x.cqs[i] = x.cqs[0]
		return
	}
	num, count, cqeSize := uint32(x.Get()), x.Int(), x.Int()
	mem, record, uar := x.Place(count*cqeSize), x.Place(8), x.Place(uarSize)
	request := x.Bytes(x.Int())
	var mine []byte
	q, err := x.fake.CreateCQ(&provider.CQInit{Depth: depth}, func(u provider.UHW) (provider.CQInfo, error) {
		mine = slices.Clone(u.In)
		copy(u.Out, mmap.Bytes(&abi.Mlx5IbCreateCqResp{Cqn: num}))
		return provider.CQInfo{}, nil
	})
	x.Check(err)
	cq := q.(*completionQueue)
	x.cqs[i] = &comparedCQ{
		completionQueue: cq, num: num, ring: cq.cqes, record: record, uar: uar,
		c: cqes{base: unsafe.Pointer(&mem[cqeSize-smallCQE]), mask: uint32(count - 1), shift: cq.shift},
	}
	if x.Equal("CQE size of the command", request[16:20], mine[16:20]) {
		x.Equal("new CQs", mem, unsafe.Slice((*byte)(unsafe.Add(cq.base, smallCQE-size)), (int(cq.mask)+1)<<cq.shift))
	}
}

func (x *comparison) createSRQ(n int) {
	num, length, stride, room, head := x.Get(), x.Int(), x.Int(), x.Int(), x.Int()
	mem, record := x.Place(length*stride), x.Place(4)
	x.Bytes(x.Int())
	q, err := x.fake.CreateSRQ(&provider.SRQInit{MaxWR: n, MaxSGE: x.cap.MaxRecvSGE}, func(u provider.UHW) (provider.SRQInfo, error) {
		copy(u.Out, mmap.Bytes(&abi.Mlx5IbCreateSrqResp{Srqn: uint32(num)}))
		return provider.SRQInfo{}, nil
	})
	x.Check(err)
	x.srq = &comparedSRQ{recvQueue: q.(*recvQueue), mem: mem, record: record, stride: stride, head: head, free: room}
	if q := x.srq; int(q.most) != room || int(q.recvQueue.stride) != stride {
		x.Differ("SRQ of %d and %d receives of %d and %d bytes", room, q.most, stride, q.recvQueue.stride)
	}
}

func (x *comparison) createQP() {
	num, room, blocks, recvs, stride := uint32(x.Get()), uint32(x.Get()), x.Int(), x.Int(), x.Int()
	at, sends := x.Int(), x.Int()
	record := x.Place(8)
	page := int(x.Get())
	half := x.Int()
	request := x.Bytes(x.Int())
	init := &provider.QPInit{
		Type: x.typ, DCKey: x.key, Cap: x.cap, SignalAll: x.all, SendCQ: x.cqs[0].completionQueue, RecvCQ: x.cqs[1].completionQueue,
	}
	init.Cap.MaxSendWR = max(1, blocks*block/sendSize(x.typ, x.cap.MaxSendSGE, x.cap.MaxInline))
	if x.srq != nil {
		init.SRQ = x.srq.recvQueue
	}
	var mine []byte
	s, r, err := x.fake.CreateQP(init, func(u provider.UHW) (provider.QPInfo, error) {
		mine = slices.Clone(u.In)
		copy(u.Out, mmap.Bytes(&abi.Mlx5IbCreateQpResp{}))
		return provider.QPInfo{QPNum: num}, nil
	})
	x.Check(err)
	p := s.(*sendQueue).qp
	p.send.State = verbs.StateRTS
	if r != nil {
		r.(*recvQueue).State = verbs.StateRTS
	}
	p.port.Store(1)
	q := &comparedQP{queuePair: p, index: binary.NativeEndian.Uint32(request[32:]), room: min(room, p.send.most), record: record}
	q.recvs, q.sends = x.Mem[at:][:sends], x.Mem[at+sends:][:blocks*block]
	x.qps = append(x.qps, q)
	c := x.Mem[page:][:max(2*half, 8)]
	if q.regs = x.regs[&c[0]]; q.regs == nil {
		g := unsafe.Pointer(unsafe.SliceData(make([]uint64, len(c)/8)))
		q.regs = &comparedRegs{c: c, g: unsafe.Slice((*byte)(g), len(c)), reg: &register{mem: g, half: uintptr(half)}}
		x.regs[&c[0]] = q.regs
	}
	p.reg = q.regs.reg
	const flags, types = 28, abi.MLX5_QP_FLAG_TYPE_DCI | abi.MLX5_QP_FLAG_TYPE_DCT
	x.Equal("types in the command", []byte{request[flags] & types}, []byte{mine[flags] & types})
	if x.Equal("sizes in the command", request[16:28], mine[16:28]) && recvs > 0 && (recvs != int(p.recv.mask)+1 || stride != int(p.recv.stride)) {
		x.Differ("%d and %d receives of %d and %d bytes", recvs, p.recv.mask+1, stride, p.recv.stride)
	}
	if int(p.send.most) < int(room) {
		x.Differ("%d blocks take %d requests of libmlx5, and %d here", blocks, room, p.send.most)
	}
}

// createAH makes an address handle. The kernel knows the way to the port's own addresses.
func (x *comparison) createAH() {
	r := x.Rand
	e := x.gids[r.IntN(len(x.gids))]
	v := verbs.AddressVector{
		Global: true, DGID: e.gid, SGIDIndex: e.index, HopLimit: uint8(r.Uint32()), TrafficClass: uint8(r.Uint32()),
		SL: uint8(r.IntN(8)), Port: 1,
	}
	if r.IntN(4) > 0 {
		v.StaticRate = verbs.Rate(2 + r.IntN(21)) // the kernel refuses others
	}
	if r.IntN(4) > 0 {
		v.FlowLabel = r.Uint32() & flowMask
	}
	ethernet := x.fake.dev.Port.LinkLayer == verbs.LinkEthernet
	if !ethernet {
		v.Global, v.SL, v.SrcPathBits, v.DLID = r.IntN(2) == 0, uint8(r.IntN(16)), uint8(r.IntN(128)), uint16(r.Uint32())
	}
	index := uint64(len(x.handles))
	x.Put(orderHandle, index, bit(v.Global), uint64(v.SGIDIndex), binary.NativeEndian.Uint64(v.DGID[:]), binary.NativeEndian.Uint64(v.DGID[8:]),
		uint64(v.FlowLabel), uint64(v.HopLimit), uint64(v.TrafficClass), uint64(v.DLID), uint64(v.SL), uint64(v.SrcPathBits), uint64(v.StaticRate))
	x.Do()
	av := x.Bytes(avSize)
	a := x.fake.ah(x.T, new(addressHandle))
	if ethernet {
		a.setRoCE(&v, e.typ, [6]byte(av[avMAC:])) // the kernel's answer
		if v.FlowLabel == 0 {
			copy(a.av[avLID:avLID+2], av[avLID:]) // any port
		}
	} else {
		a.setInfiniBand(&v)
	}
	x.handles = append(x.handles, handle{a, index})
	x.Equal(fmt.Sprintf("address vectors of %+v, %v", v, e.typ), av, a.av[:])
}

func (x *comparison) destroy() {
	x.Put(orderDestroy)
	x.Do()
	for _, h := range x.handles {
		h.Release()
	}
	for _, p := range x.qps {
		p.send.Release()
		if x.srq == nil {
			p.recv.Release()
		}
	}
	if x.srq != nil {
		x.srq.Release()
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
	for range r.IntN(3) {
		x.completeSends(x.qps[r.IntN(len(x.qps))])
	}
	for range r.IntN(8) {
		x.completeRecv(x.qps[r.IntN(len(x.qps))])
	}
	switch r.IntN(60) {
	case 0:
		x.reset(p)
	case 1:
		x.resize(x.cqs[r.IntN(2)])
	}
	// libmlx5 gets all orders at once.
	var compare []func()
	for i := range x.cqs {
		if i == 0 || x.cqs[1] != x.cqs[0] {
			compare = append(compare, x.poll(i, 1+r.IntN(32)))
			if r.IntN(8) == 0 {
				compare = append(compare, x.arm(i))
			}
		}
	}
	compare = append(compare, x.postRecv(p), x.postSend(p))
	x.Do()
	for _, f := range compare {
		if !x.Different() {
			f()
		}
	}
}

// write writes a completion for both, with a word of the QP each.
func (q *comparedCQ) write(e [smallCQE]byte, opcode uint32, p *comparedQP, c, g uint16) {
	for _, to := range []struct {
		ring    *cqes
		index   uint32
		counter uint16
	}{{&q.c, p.index, c}, {&q.ring, p.queuePair.index, g}} {
		be.PutUint32(e[cqeIndex:], be.Uint32(e[cqeIndex:])&^indexMask|to.index)
		be.PutUint16(e[cqeLast:], to.counter)
		w := last(be.Uint32(e[cqeLast:])).with(opcode, to.ring.owner(q.pi))
		be.PutUint32(e[cqeLast:], uint32(w))
		copy(unsafe.Slice((*byte)(to.ring.at(q.pi)), smallCQE), e[:])
	}
	q.pi++
}

// full reports whether the device would have no place for a completion.
func (q *comparedCQ) full() bool { return q.pi-q.next >= q.mask }

// random returns a CQE for a QP, with the opcode of a request.
func (x *comparison) random(p *comparedQP, opcode uint8) (e [smallCQE]byte) {
	for i := range e {
		e[i] = byte(x.Rand.Uint32())
	}
	e[cqeIndex] = byte(x.Rand.IntN(2)) // the index has 24 bits
	be.PutUint32(e[cqeOpcode:], uint32(opcode)<<24|p.num)
	e[cqeLast+3] = byte(x.Rand.IntN(2) << 1) // solicited; neither compressed, nor with data
	return e
}

// fail makes a CQE one with a syndrome, mostly one that there is.
func (x *comparison) fail(e *[smallCQE]byte) {
	const remoteAborted, pageFault = 0x22, 0x93
	e[cqeSyndrome] = byte(x.Rand.IntN(remoteAborted + 2))
	if x.Rand.IntN(10) == 0 {
		e[cqeSyndrome] = byte(x.Rand.Uint32())
	}
	if e[cqeSyndrome] == remoteAborted && e[cqeVendor] == pageFault { // libmlx5 posts that receive again
		e[cqeVendor]++
	}
}

// completeSends completes some of a QP's requests.
func (x *comparison) completeSends(p *comparedQP) {
	n := x.Rand.IntN(len(p.sent) + 1)
	for i, s := range p.sent[:n] {
		fails := x.Rand.IntN(100) < x.failed || i == n-1 && !s.signaled
		if !fails && !s.signaled {
			continue
		}
		if x.cqs[0].full() {
			n = i
			break
		}
		e, op := x.random(p, s.opcode), uint32(cqeRequest)
		if fails {
			x.fail(&e)
			op = cqeRequestErr
		}
		x.cqs[0].write(e, op, p, s.block, s.block)
	}
	p.sent = p.sent[n:]
}

// completeRecv completes one of a QP's receives, or any of the SRQ's.
func (x *comparison) completeRecv(p *comparedQP) {
	r, q := x.Rand, x.cqs[1]
	var c, g uint16
	if q.full() {
		return
	}
	switch s := x.srq; {
	case s == nil && p.received == 0 || s != nil && len(s.inFlight) == 0:
		return
	case s == nil:
		c = uint16(p.recv.head.Load() - uint32(p.received))
		g = c
		p.received--
	default:
		i := r.IntN(len(s.inFlight))
		c, g = s.inFlight[i][0], s.inFlight[i][1]
		s.inFlight = slices.Delete(s.inFlight, i, i+1)
		p.dropped++
	}
	e, op := x.random(p, byte(r.Uint32())), uint32(cqeWriteImm+r.IntN(4))
	if r.IntN(100) < x.failed {
		x.fail(&e)
		op = cqeReceiveErr
	}
	q.write(e, op, p, c, g)
}

// poll polls a CQ. It returns what compares the completions with libmlx5's, as do those below.
func (x *comparison) poll(i, n int) (compare func()) {
	x.Put(orderPoll, uint64(i), uint64(n))
	wcs := make([]verbs.WC, n)
	wcs = wcs[:provider.Poll(x.cqs[i], wcs)]
	for i := range wcs {
		if x.srq != nil && wcs[i].Opcode&verbs.WCRecv != 0 {
			x.qp(wcs[i].QPNum).dropped--
			x.srq.free++
		}
	}
	return func() { x.comparePoll(x.cqs[i], wcs) }
}

func (x *comparison) comparePoll(q *comparedCQ, wcs []verbs.WC) {
	if got := x.Int(); got != len(wcs) {
		x.Differ("libmlx5 polls %d completions, Go %d of those from %d to %d", got, len(wcs), q.next, q.pi)
		return
	}
	for i := range wcs {
		g := &wcs[i]
		c := verbs.WC{
			ID: x.Get(), Status: verbs.WCStatus(x.Get()), Opcode: verbs.WCOpcode(x.Get()), VendorErr: uint32(x.Get()), ByteLen: uint32(x.Get()),
		}
		key := uint32(x.Get())
		c.QPNum, c.SrcQP, c.Flags = uint32(x.Get()), uint32(x.Get()), verbs.WCFlags(x.Get())
		c.SLID, c.SL, c.PathBits = uint16(x.Get()), uint8(x.Get()), uint8(x.Get())
		switch {
		case c.Status != verbs.WCSuccess:
			c = verbs.WC{ID: c.ID, Status: c.Status, VendorErr: c.VendorErr, QPNum: c.QPNum, Opcode: g.Opcode}
		case c.Opcode&verbs.WCRecv == 0:
			c.Flags &^= verbs.WCWithImm
		case x.typ == verbs.UD:
			c.Port = 1 // libmlx5 has none
			if x.fake.dev.Port.LinkLayer == verbs.LinkEthernet {
				switch c.SL & 3 { // the type of the L3 header
				case l3IPv6:
					c.Flags |= verbs.WCIPv6
				case l3IPv4:
					c.Flags |= verbs.WCIPv4
				}
				c.SLID, c.SL, c.PathBits = 0, 0, 0 // bits of another meaning
			}
		default:
			c.SrcQP, c.SLID, c.SL, c.PathBits = 0, 0, 0, 0
		}
		if c.Flags&verbs.WCWithImm != 0 {
			var b [4]byte
			binary.NativeEndian.PutUint32(b[:], key)
			provider.SetImm(&c, be.Uint32(b[:]))
		} else if c.Flags&verbs.WCWithInv != 0 {
			provider.SetInvalidatedRKey(&c, key)
		}
		if c != *g {
			x.Differ("completion %d of %d is %+v in libmlx5, and here %+v", i, len(wcs), c, *g)
			return
		}
	}
	x.completions += len(wcs)
	if x.draining && q.next != q.pi {
		return // what is skipped here has been removed there
	}
	x.Equal("CQ's doorbell records", q.record, q.rec[:8])
}

func (x *comparison) qp(num uint32) *comparedQP {
	return x.qps[slices.IndexFunc(x.qps, func(p *comparedQP) bool { return p.num == num })]
}

// arm requests an event.
func (x *comparison) arm(i int) (compare func()) {
	q, solicited := x.cqs[i], x.Rand.IntN(2) == 0
	x.Put(orderArm, uint64(i), bit(solicited))
	x.Check(q.Arm(solicited))
	return func() {
		if x.Int() != 0 {
			x.T.Fatal("ibv_req_notify_cq failed")
		}
		if x.Equal("armed CQ's doorbell records", q.record, q.rec[:8]) {
			x.Equal("CQ's registers", q.uar[uarCQ:][:8], unsafe.Slice((*byte)(unsafe.Pointer(x.fake.regs.cq)), 8))
		}
	}
}

// reset resets a QP, and starts it again.
func (x *comparison) reset(p *comparedQP) {
	x.Put(orderReset, uint64(slices.Index(x.qps, p)))
	x.Do()
	if x.srq == nil {
		p.recv.Suspend()
	}
	p.send.Suspend()
	p.send.Settle(verbs.StateReset, true)
	if x.srq == nil {
		p.recv.Settle(verbs.StateReset, true)
		p.recv.State = verbs.StateRTS
	} else {
		x.srq.free += p.dropped
	}
	p.send.State = verbs.StateRTS
	p.sent, p.received, p.dropped = nil, 0, 0
	if !x.Equal("doorbell records after a reset", p.record, p.queuePair.record[:8]) {
		return
	}
	// The CQs have to be empty before they can be compared: what has been removed is skipped here,
	// and in libmlx5 the others have moved up.
	x.draining = true
	defer func() { x.draining = false }()
	for i, q := range x.cqs {
		for q.next != q.pi && !x.Different() {
			x.drain(i)
		}
	}
}

// drain polls a CQ until it is empty.
func (x *comparison) drain(i int) {
	q := x.cqs[i]
	compare := x.poll(i, 64)
	x.Do()
	compare()
	if q.next != q.pi && !x.Different() && !q.written(q.next, loadLast(q.at(q.next))) {
		x.Differ("CQ ends at %d, and there are completions up to %d", q.next, q.pi)
	}
}

// resize changes the size of a CQ. The kernel does so with the ring that it knows.
func (x *comparison) resize(q *comparedCQ) {
	i, n := slices.Index(x.cqs[:], q), 1+x.Rand.IntN(1<<x.Rand.IntN(9))
	// The adapter, which knows the records of before, takes the CQE of each resize for one that is
	// still in the ring.
	if q.full() || n < int(q.pi-q.next)+1 || provider.RoundUp(n+1) == int(q.mask)+1 || q.resized >= min(n, int(q.mask)) {
		return
	}
	q.resized++
	q.write([smallCQE]byte{}, cqeResized, x.qps[0], 0, 0)
	x.Put(orderResize, uint64(i), uint64(n))
	x.Do()
	from := q.next
	x.Check(q.Resize(n, func(int, provider.UHW) error { return nil }))
	num, count, cqeSize := x.Get(), x.Int(), x.Int()
	mem := x.Place(count * cqeSize)
	q.record, q.uar = x.Place(8), x.Place(uarSize)
	if num != uint64(q.num) || count != int(q.mask)+1 {
		x.Differ("CQ %d of %d CQEs after a resize, and %d of %d", num, count, q.num, q.mask+1)
		return
	}
	q.c = cqes{base: unsafe.Pointer(&mem[cqeSize-smallCQE]), mask: uint32(count - 1), shift: q.shift}
	q.ring = q.cqes
	for i := from + 1; i != q.pi && !x.Different(); i++ {
		c := [smallCQE]byte(unsafe.Slice((*byte)(q.c.at(i)), smallCQE))
		g := [smallCQE]byte(unsafe.Slice((*byte)(q.at(i)), smallCQE))
		copy(c[cqeIndex+1:][:3], g[cqeIndex+1:])
		copy(c[cqeLast:][:2], g[cqeLast:])
		x.Equal("CQEs after a resize", c[:], g[:])
	}
}

// postRecv posts a list of receives.
func (x *comparison) postRecv(p *comparedQP) (compare func()) {
	r, most := x.Rand, x.cap.MaxRecvSGE
	room := 0
	if x.srq != nil {
		room = x.srq.free
	} else {
		room = int(p.recv.most - (p.recv.head.Load() - p.recv.tail.Load()))
	}
	n := min(room, 1+r.IntN(1<<r.IntN(6)))
	if x.srq == nil && p.recv.most == p.recv.mask+1 && r.IntN(20) == 0 { // one too many for both
		n = min(n, 63) + 1
	}
	if n == 0 {
		return func() {}
	}
	wrs := make([]verbs.RecvWR, n)
	for i := range wrs {
		x.id++
		wrs[i] = verbs.RecvWR{ID: x.id, SGL: x.sgl(most, 1<<30, x.srq == nil)}
	}
	if r.IntN(50) == 0 { // too many elements
		wrs[r.IntN(n)].SGL = make([]verbs.SGE, 30)
	}
	x.Put(orderRecv, uint64(slices.Index(x.qps, p)), uint64(n))
	for _, w := range wrs {
		x.Put(w.ID)
		x.PutSGL(w.SGL)
	}
	return func() { x.compareRecv(p, wrs) }
}

func (x *comparison) compareRecv(p *comparedQP, wrs []verbs.RecvWR) {
	q, first := p.recv, uint32(0)
	if x.srq != nil {
		first = x.srq.shared.first
	}
	posted, err := q.Post(wrs)
	if got := x.Int(); got != posted {
		x.Differ("libmlx5 posts %d receives of %d, Go %d: %v", got, len(wrs), posted, err)
		return
	}
	x.lists++
	x.requests[x.typ] += posted
	if x.srq != nil {
		x.compareSRQ(wrs[:posted], first)
		return
	}
	p.received += posted
	if x.Equal("receive queues", p.recvs, unsafe.Slice((*byte)(q.base), (uintptr(q.mask)+1)*q.stride)) {
		x.Equal("doorbell records", p.record[:4], p.queuePair.record[:4])
	}
}

// compareSRQ compares receives that have been posted. Each names the next one.
func (x *comparison) compareSRQ(wrs []verbs.RecvWR, g uint32) {
	s := x.srq
	for _, w := range wrs {
		size := min(srqNextSize+segmentSize*(len(w.SGL)+1), s.stride) // behind that is what was there before
		c, mine := s.mem[s.head*s.stride:][:size], unsafe.Slice((*byte)(s.entry(g)), size)
		s.inFlight = append(s.inFlight, [2]uint16{uint16(s.head), uint16(g)})
		s.head, g = int(be.Uint16(c[srqNextIndex:])), s.following(g)
		if !x.Equal("receives of an SRQ", c[4:], mine[4:]) {
			return
		}
	}
	s.free -= len(wrs)
	x.Equal("doorbell records", s.record, s.shared.record[:4])
}

// sgl returns a list of up to most elements and total bytes.
func (x *comparison) sgl(most, total int, empty bool) []verbs.SGE {
	r := x.Rand
	list := make([]verbs.SGE, r.IntN(most+1))
	for i := range list {
		length := 1 + r.IntN(max(1, min(total/len(list), 1<<r.IntN(30))))
		if empty && r.IntN(6) == 0 {
			length = 0
		}
		list[i] = verbs.SGE{Addr: r.Uint64(), Length: uint32(length), LKey: r.Uint32()}
	}
	return list
}

// request returns a random request, and the list that has libmlx5 for inline data.
func (x *comparison) request() (w verbs.SendWR, inline []verbs.SGE) {
	r := x.Rand
	ops := []verbs.Opcode{verbs.OpSend, verbs.OpSendImm}
	if x.typ != verbs.UD {
		ops = append(ops, verbs.OpRDMAWrite, verbs.OpRDMAWriteImm, verbs.OpBindMW, verbs.OpLocalInv)
	}
	if x.typ == verbs.RC || x.typ == verbs.DCI {
		ops = append(ops, verbs.OpSendInv, verbs.OpRDMARead, verbs.OpCompareSwap, verbs.OpFetchAdd)
	}
	x.id++
	w = verbs.SendWR{
		ID: x.id, Opcode: ops[r.IntN(len(ops))], Imm: r.Uint32(), RemoteAddr: r.Uint64(), RKey: r.Uint32(),
		Args: &verbs.SendArgs{CompareAdd: r.Uint64(), Swap: r.Uint64()},
	}
	if x.typ == verbs.DCI && r.IntN(2) == 0 {
		w.Args.DCKey = r.Uint64()
	}
	if r.IntN(10) < x.signaled {
		w.Flags |= verbs.SendSignaled
	}
	w.Flags |= verbs.SendFlags(r.IntN(2))*verbs.SendSolicited | verbs.SendFlags(r.IntN(2))*verbs.SendFence
	most := 1 << 30
	if x.typ == verbs.UD {
		most = x.fake.dev.Port.ActiveMTU.Bytes()
	}
	if x.addressed() {
		w.To = verbs.UDAddr{AH: x.handles[r.IntN(len(x.handles))].num, QPNum: r.Uint32() & indexMask, QKey: r.Uint32()}
	}
	atomic := w.Opcode == verbs.OpCompareSwap || w.Opcode == verbs.OpFetchAdd
	switch {
	case w.Opcode == verbs.OpBindMW:
		w.Args.Bind = x.window()
	case w.Opcode == verbs.OpLocalInv:
	case atomic:
		w.SGL = make([]verbs.SGE, 1+r.IntN(x.cap.MaxSendSGE))
		w.SGL[r.IntN(len(w.SGL))] = verbs.SGE{Addr: r.Uint64(), Length: 8, LKey: r.Uint32()}
	case w.Opcode != verbs.OpRDMARead && r.IntN(2) == 0:
		left := x.cap.MaxInline
		for i := range r.IntN(x.cap.MaxSendSGE + 1) {
			n := r.IntN(left + 1)
			if r.IntN(4) == 0 {
				n = 0
			}
			left -= n
			at := r.IntN(len(x.data) - n)
			if b := x.data[at:][:n]; i == 0 && r.IntN(2) == 0 {
				w.Inline = b
			} else {
				w.Args.InlineList = append(w.Args.InlineList, b)
			}
			inline = append(inline, verbs.SGE{Addr: uint64(providertest.PlaceData + at), Length: uint32(n)})
		}
	default:
		w.SGL = x.sgl(x.cap.MaxSendSGE, most, true)
	}
	if a := w.Args; !atomic && a.Bind == nil && a.InlineList == nil && a.DCKey == 0 && r.IntN(4) > 0 {
		w.Args = nil // most requests have none, and Post writes them in other ways
	}
	return w, inline
}

// window returns a binding of a window of either type.
func (x *comparison) window() *verbs.MWBind {
	r := x.Rand
	b := &verbs.MWBind{
		Type: verbs.MWType(r.IntN(3)), RKey: r.Uint32(), NewRKey: r.Uint32(), LKey: r.Uint32(), Addr: r.Uint64(), Length: 1 + r.Uint64N(1<<r.IntN(32)),
		Access: verbs.Access(r.Uint32()),
	}
	if x.typ == verbs.DCI { // libmlx5 has no function for those of type 1
		b.Type = verbs.MWType2
	}
	if b.Type == verbs.MWType1 {
		b.NewRKey = verbs.NextRKey(b.RKey) // that of ibv_bind_mw
		b.Access &^= verbs.AccessZeroBased
		b.Length *= uint64(r.IntN(4)) / 3
	}
	return b
}

const ctrlImm = 12 // of the control segment

// unused is in registers before a list is posted.
const unused = 0xeeeeeeeeeeeeeeee

// postSend posts a list of requests.
func (x *comparison) postSend(p *comparedQP) (compare func()) {
	r, q := x.Rand, p.send
	room := int(p.room) - q.requests()
	n := min(room, 1+r.IntN(1<<r.IntN(6)))
	if n == 0 {
		return func() {}
	}
	wrs, sizes := make([]verbs.SendWR, n), make([][]verbs.SGE, n)
	for i := range wrs {
		wrs[i], sizes[i] = x.request()
	}
	switch i := r.IntN(n); r.IntN(100) {
	case 0: // too many elements, or too much data
		wrs[i].Inline, wrs[i].Args, sizes[i], wrs[i].SGL = nil, withoutInline(wrs[i].Args), nil, make([]verbs.SGE, 30)
	case 1:
		if wrs[i].SGL == nil {
			wrs[i].Inline, wrs[i].Args, sizes[i] = x.data[:1200], withoutInline(wrs[i].Args), []verbs.SGE{{Addr: providertest.PlaceData, Length: 1200}}
		}
	case 2:
		if b := provider.Args(&wrs[i]).Bind; b != nil {
			b.Length += maxWindow
		}
	}
	for i := 0; i < len(p.regs.c); i += 8 {
		be.PutUint64(p.regs.c[i:], unused)
		be.PutUint64(p.regs.g[i:], unused)
	}
	x.Put(orderSend, uint64(slices.Index(x.qps, p)), uint64(n))
	for i := range wrs {
		w, args := &wrs[i], provider.Args(&wrs[i])
		list, flags, ah := w.SGL, w.Flags, uint64(0)
		if sizes[i] != nil {
			list, flags = sizes[i], flags|provider.SendInline
		}
		key := uint64(w.To.QKey)
		if x.typ == verbs.DCI {
			key = args.DCKey
		}
		if x.addressed() {
			ah = x.handles[slices.IndexFunc(x.handles, func(h handle) bool { return h.num == w.To.AH })].index
		}
		x.Put(w.ID, uint64(w.Opcode-1), uint64(flags), uint64(w.Imm), uint64(w.RKey), w.RemoteAddr, uint64(w.RKey), args.CompareAdd, args.Swap,
			ah, uint64(w.To.QPNum), key)
		if b := args.Bind; b != nil {
			typ := verbs.MWType2
			if b.Type == verbs.MWType1 {
				typ = b.Type
			}
			x.Put(uint64(typ), uint64(b.RKey), uint64(b.NewRKey), uint64(b.LKey), b.Addr, b.Length, uint64(b.Access))
		}
		x.PutSGL(list)
	}
	return func() { x.compareSend(p, wrs) }
}

// withoutInline returns a without inline data. a may be nil.
func withoutInline(a *verbs.SendArgs) *verbs.SendArgs {
	if a != nil {
		a.InlineList = nil
	}
	return a
}

func (x *comparison) compareSend(p *comparedQP, wrs []verbs.SendWR) {
	q := p.send
	// The first time, libmlx5 tells which half is the first.
	if half := p.regs.reg.half; half != 0 && !p.regs.used && be.Uint64(p.regs.c[half:]) != unused {
		p.regs.reg.offset = half
	}
	first := q.put
	posted, err := q.Post(wrs)
	if got := x.Int(); got != posted {
		x.Differ("libmlx5 posts %d requests of %d, Go %d: %v", got, len(wrs), posted, err)
		return
	}
	p.regs.used = p.regs.used || posted > 0
	x.lists++
	x.requests[x.typ] += posted
	mine := unsafe.Slice((*byte)(q.base), q.bytes)
	half := int(p.regs.reg.offset ^ p.regs.reg.half) // that has been written to
	for i := first; i != q.put; i += blocksOf(q.blocks(i, 1)) {
		unwritten(p.sends[int(i&q.mask)*block:], p.sends[int((i+1)&q.mask)*block:])
		if posted == 1 && p.regs.reg.half >= bindSize {
			unwritten(p.regs.c[half:], p.regs.c[half+block:])
		}
	}
	for i, at := 0, first; at != q.put; i++ {
		for _, mem := range [][]byte{p.sends, mine} {
			q.blank(mem, at, &wrs[i])
		}
		if posted == 1 && p.regs.reg.half > 0 {
			for _, reg := range [][]byte{p.regs.c, p.regs.g} {
				q.blank(reg[half:], 0, &wrs[i])
			}
		}
		at += blocksOf(q.blocks(at, 1))
	}
	if posted < len(wrs) { // of the refused one, each may have written a part
		for i := first; i != q.put && !x.Different(); i++ {
			at := int(i&q.mask) * block
			x.Equal("requests before a refused one", p.sends[at:][:block], mine[at:][:block])
		}
		copy(mine, p.sends)
	}
	switch b := q.blocks(first, 1); {
	case q.Type == verbs.DCI:
	case posted < len(wrs) && begun(&wrs[posted]): // libmlx5 stores the first bytes of that one
		copy(p.regs.g, p.regs.c)
		if q.accepts = typeBit(q.Type); operations[wrs[posted].Opcode].types == 0 {
			q.accepts = 0
		}
	case posted == 1 && b[7]&0x3f == 1 && p.regs.reg.half > 0: // libmlx5 copies no request without data
		x.Equal("registers", b, p.regs.g[half:][:block])
		copy(p.regs.g[half+8:][:block-8], p.regs.c[half+8:])
	}
	if !x.Equal("send queues", p.sends, mine) || !x.Equal("doorbell records", p.record, p.queuePair.record[:8]) || !x.Equal("registers", p.regs.c, p.regs.g) {
		x.T.Logf("%.2000s", fmt.Sprintf("%+v", wrs))
		return
	}
	for i := range wrs[:posted] {
		e := mine[int(first&q.mask)*block:]
		p.sent = append(p.sent, sentRequest{uint16(first), e[3], q.SignalAll || wrs[i].Flags&verbs.SendSignaled != 0})
		first += blocksOf(e)
	}
	if first != q.put {
		x.T.Fatal("requests do not end where the next begins")
	}
}

// blank zeroes what is behind the inline data of a request at a block of a ring, up to the end of
// its segment, and the immediate of a DCI's request that has none. No device reads them: libmlx5
// leaves there what was in the queue.
func (q *sendQueue) blank(ring []byte, first uint32, wr *verbs.SendWR) {
	if q.Type == verbs.DCI && (wr.Opcode == verbs.OpSend || operationOf(wr.Opcode).remote && wr.Opcode != verbs.OpRDMAWriteImm) {
		clear(ring[int(first&q.mask)*block+ctrlImm:][:4])
	}
	n := len(wr.Inline)
	for _, b := range provider.Args(wr).InlineList {
		n += len(b)
	}
	if n == 0 {
		return
	}
	at := int(operationOf(wr.Opcode).head) + inlineHead + n
	if q.Type == verbs.UD || q.Type == verbs.DCI {
		at += avSize
	}
	for ; at%unit != 0; at++ {
		if i := int(first&q.mask)*block + at; i < len(ring) || first != 0 {
			ring[i%len(ring)] = 0
		}
	}
}

// addressed reports whether requests name a destination.
func (x *comparison) addressed() bool { return x.typ == verbs.UD || x.typ == verbs.DCI }

// requests returns the number of requests in flight.
func (q *sendQueue) requests() (n int) {
	for i := range q.sent {
		if _, _, ok := q.sent[i].inFlight(q.head.Load(), q.tail.Load()); ok {
			n++
		}
	}
	return n
}

// blocksOf returns how many blocks a request takes.
func blocksOf(b []byte) uint32 { return uint32(int(b[7]&0x3f)*unit+block-1) / block }

// begun reports whether libmlx5 has written to the queue before it refuses a request.
func begun(wr *verbs.SendWR) bool {
	return len(wr.Inline) > 0 || len(wr.SGL) == 0 && provider.Args(wr).Bind != nil
}

// unwritten zeroes what set_umr_mkey_seg of libmlx5 leaves as it was before, if a request is UMR.
func unwritten(wqe, key []byte) {
	if wqe[3] != opUMR {
		return
	}
	key[1], key[3] = 0, 0
	clear(key[8:16])
	clear(key[32:block])
	if wqe[umrOctowords+1] == 0 {
		key[2] = 0
		clear(key[16:32])
	}
}
