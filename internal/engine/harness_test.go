package engine

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

var (
	addrA = netip.MustParseAddr("10.0.0.1")
	addrB = netip.MustParseAddr("10.0.0.2")
)

// node is a device with what tests need.
type node struct {
	t   testing.TB
	dev *Device
	pd  *PD
	cq  *testCQ // of sends
	rcq *testCQ
	mem []byte
	mr  *MR
}

// testCQ is a CQ and the program's side of it.
type testCQ struct {
	*CQ
	wake   chan struct{}
	events atomic.Int32 // EventCQErr
	mu     sync.Mutex
	limit  *time.Timer // of next
}

func newNode(t testing.TB, net *testNetwork, memory int, addrs ...netip.Addr) *node {
	t.Helper()
	dev, err := New(Config{Name: "soft0", Network: net, Addrs: addrs})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	n := &node{t: t, dev: dev}
	n.pd = must(dev.AllocPD())(t)
	n.cq, n.rcq = n.newCQ(4096), n.newCQ(4096)
	n.mem = alignedBytes(memory)
	n.mr = n.register(n.mem, verbs.AccessAll|verbs.AccessMWBind|verbs.AccessFlushGlobal)
	return n
}

// alignedBytes returns memory that is aligned to 8 bytes.
func alignedBytes(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))), n)
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (n *node) register(b []byte, access verbs.Access) *MR {
	n.t.Helper()
	a := mmap.Addr(b)
	return must(n.pd.RegisterMR(a, uint64(len(b)), a, access))(n.t)
}

func (n *node) newCQ(entries int) *testCQ {
	n.t.Helper()
	c := &testCQ{wake: make(chan struct{}, 1)}
	c.CQ = must(n.dev.CreateCQ(CQInit{
		Entries: entries,
		Notify: func() {
			select {
			case c.wake <- struct{}{}:
			default:
			}
		},
		Event: func(verbs.AsyncEventType) { c.events.Add(1) },
	}))(n.t)
	return c
}

// poll takes a completion.
func (c *testCQ) poll() (wc verbs.WC, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.Ring()
	cons := r.cons.Load() & r.mask
	if cons == r.prod.Load()&r.mask {
		return wc, false
	}
	wc = *(*verbs.WC)(unsafe.Pointer(r.cqe(cons)))
	r.cons.Store(r.next(cons))
	return wc, true
}

// next waits for a completion.
func (c *testCQ) next(t testing.TB) verbs.WC {
	t.Helper()
	for {
		if wc, ok := c.poll(); ok {
			return wc
		}
		if c.limit == nil {
			c.limit = time.NewTimer(0)
		}
		c.limit.Reset(20 * time.Second)
		c.Arm(false)
		if wc, ok := c.poll(); ok {
			return wc
		}
		select {
		case <-c.wake:
			c.limit.Stop()
		case <-c.limit.C:
			t.Fatal("no completion")
		}
	}
}

// expect waits for a completion with an ID and a status.
func (c *testCQ) expect(t testing.TB, id uint64, status verbs.WCStatus) verbs.WC {
	t.Helper()
	wc := c.next(t)
	if wc.ID != id || wc.Status != status {
		t.Fatalf("completion of %#x: %v; want %#x: %v", wc.ID, wc.Status.String(), id, status.String())
	}
	return wc
}

// until waits until ok returns true. It is labtest.Until, which needs this package.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			t.Fatalf("waited too long for %s", what)
		}
	}
}

// conn is a QP and the program's side of its rings.
type conn struct {
	*QP
	n      *node
	events chan verbs.AsyncEventType
}

func (n *node) newQP(typ verbs.QPType, change ...func(*QPInit)) *conn {
	n.t.Helper()
	events := make(chan verbs.AsyncEventType, 64)
	init := QPInit{
		Type: typ, SendCQ: n.cq.CQ, RecvCQ: n.rcq.CQ,
		Cap:   verbs.QPCap{MaxSendWR: 255, MaxRecvWR: 255, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInline: 128},
		Event: func(e verbs.AsyncEventType) { events <- e },
	}
	for _, f := range change {
		f(&init)
	}
	return &conn{QP: must(n.pd.CreateQP(init))(n.t), n: n, events: events}
}

// pair returns connected QPs.
func pair(a, b *node, typ verbs.QPType, change ...func(*verbs.QPAttr)) (*conn, *conn) {
	x, y := a.newQP(typ), b.newQP(typ)
	x.connect(y, change...)
	y.connect(x, change...)
	return x, y
}

const testQKey = 0x11111111

// connect moves the QP to RTS.
func (c *conn) connect(to *conn, change ...func(*verbs.QPAttr)) {
	c.n.t.Helper()
	c.toRTR(to, change...)
	c.toRTS(change...)
}

func (c *conn) attrs(to *conn, change ...func(*verbs.QPAttr)) *verbs.QPAttr {
	gid, _ := to.n.dev.GID(0)
	a := &verbs.QPAttr{
		Port: 1, Access: verbs.AccessAll | verbs.AccessFlushGlobal, QKey: testQKey,
		AV:      verbs.AddressVector{Global: true, DGID: gid, Port: 1, HopLimit: 64},
		PathMTU: verbs.MTU1024, DestQPNum: to.Num(), RQPSN: 0xfffff0, SQPSN: 0xfffff0,
		MaxDestRDAtomic: 4, MaxRDAtomic: 4, MinRNRTimer: 1, Timeout: 10, RetryCount: 7, RNRRetry: 7,
	}
	for _, f := range change {
		f(a)
	}
	return a
}

// connectTo moves the QP to RTS with these attributes.
func (c *conn) connectTo(a *verbs.QPAttr) {
	c.n.t.Helper()
	c.toRTR(c, func(to *verbs.QPAttr) { *to = *a })
	c.toRTS(func(to *verbs.QPAttr) { *to = *a })
}

func (c *conn) toRTR(to *conn, change ...func(*verbs.QPAttr)) {
	c.n.t.Helper()
	a := c.attrs(to, change...)
	init, rtr := verbs.MaskState|maskInit, verbs.MaskState|maskRTR
	switch c.init.Type {
	case verbs.RC:
		rtr |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
	case verbs.UD:
		init, rtr = verbs.MaskState|maskUD, verbs.MaskState
	}
	a.State = verbs.StateInit
	c.mustModify(a, init)
	a.State = verbs.StateRTR
	c.mustModify(a, rtr)
}

func (c *conn) toRTS(change ...func(*verbs.QPAttr)) {
	c.n.t.Helper()
	a := c.attrs(c, change...)
	a.State = verbs.StateRTS
	mask := verbs.MaskState | verbs.MaskSQPSN
	if c.init.Type == verbs.RC {
		mask |= verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
	}
	c.mustModify(a, mask)
}

func (c *conn) mustModify(a *verbs.QPAttr, mask verbs.QPAttrMask) {
	c.n.t.Helper()
	if err := c.Modify(a, mask); err != nil {
		c.n.t.Fatalf("modify to %v: %v", a.State, err)
	}
}

// sge returns an SGE of the node's memory.
func (n *node) sge(off, length int) verbs.SGE {
	return verbs.SGE{Addr: mmap.Addr(n.mem) + uint64(off), Length: uint32(length), LKey: n.mr.LKey()}
}

// addr returns the address of the node's memory at off.
func (n *node) addr(off int) uint64 { return mmap.Addr(n.mem) + uint64(off) }

// put adds a request to the send ring without a doorbell.
func (c *conn) put(wr *verbs.SendWR) {
	r := c.SendRing()
	prod := r.prod.Load()
	if (prod+1-r.cons.Load())&r.mask == 0 {
		c.n.t.Fatal("send queue is full")
	}
	w := r.sendWQE(prod)
	*w = abi.RxeSendWqe{}
	w.Wr.WrId, w.Wr.Opcode, w.Wr.SendFlags = wr.ID, uint32(wr.Opcode-1), uint32(wr.Flags)
	payload, args := r.elem(prod)[sendWQESize:], wr.Args
	if args == nil {
		args = new(verbs.SendArgs)
	}
	switch wr.Opcode {
	case verbs.OpSendImm, verbs.OpRDMAWriteImm:
		binary.BigEndian.PutUint32(mmap.Bytes(w.Wr.Ex.ImmData()), wr.Imm)
	case verbs.OpSendInv, verbs.OpLocalInv:
		*w.Wr.Ex.InvalidateRkey() = wr.RKey
	}
	switch wr.Opcode {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteImm, verbs.OpRDMARead, verbs.OpAtomicWrite:
		w.Wr.Wr.Rdma().RemoteAddr, w.Wr.Wr.Rdma().Rkey = wr.RemoteAddr, wr.RKey
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		*w.Wr.Wr.Atomic() = abi.RxeSendWrWrAtomic{RemoteAddr: wr.RemoteAddr, CompareAdd: args.CompareAdd, Swap: args.Swap, Rkey: wr.RKey}
	case verbs.OpFlush:
		*w.Wr.Wr.Flush() = abi.RxeSendWrWrFlush{RemoteAddr: wr.RemoteAddr, Length: args.Flush.Length, Rkey: wr.RKey, Type: uint8(args.Flush.Type), Level: uint8(args.Flush.Level)}
		w.Dma.Length = args.Flush.Length
	case verbs.OpBindMW:
		*w.Wr.Wr.Mw() = abi.RxeSendWrWrMw{Addr: args.Bind.Addr, Length: args.Bind.Length, MrLkey: args.Bind.LKey, MwRkey: args.Bind.RKey, Rkey: args.Bind.NewRKey, Access: uint32(args.Bind.Access)}
	}
	if c.init.Type == verbs.UD {
		ud := w.Wr.Wr.Ud()
		ud.RemoteQpn, ud.RemoteQkey, ud.AhNum = wr.To.QPNum, wr.To.QKey, wr.To.AH
	}
	if len(wr.Inline) > 0 {
		copy(payload, wr.Inline)
		w.Dma.Length = uint32(len(wr.Inline))
		if wr.Opcode != verbs.OpAtomicWrite {
			w.Wr.SendFlags |= sendInline
		}
	}
	for i, s := range wr.SGL {
		*(*verbs.SGE)(unsafe.Pointer(&payload[i*sgeSize])) = s
		w.Dma.Length += s.Length
		w.Dma.NumSge++
	}
	w.Dma.Resid = w.Dma.Length
	r.prod.Store((prod + 1) & r.mask)
}

// post adds signaled requests and rings the doorbell.
func (c *conn) post(wrs ...verbs.SendWR) {
	c.n.t.Helper()
	for i := range wrs {
		wrs[i].Flags |= verbs.SendSignaled
		c.put(&wrs[i])
	}
	if err := c.Doorbell(); err != nil {
		c.n.t.Fatal(err)
	}
}

// postRecv adds a receive request.
func (c *conn) postRecv(id uint64, sgl ...verbs.SGE) { putRecv(c.n.t, c.RecvRing(), id, sgl...) }

func putRecv(t testing.TB, r *Ring, id uint64, sgl ...verbs.SGE) {
	t.Helper()
	prod := r.prod.Load()
	if (prod+1-r.cons.Load())&r.mask == 0 {
		t.Fatal("receive queue is full")
	}
	w := r.recvWQE(prod)
	*w = abi.RxeRecvWqe{WrId: id}
	payload := r.elem(prod)[recvWQESize:]
	for i, s := range sgl {
		*(*verbs.SGE)(unsafe.Pointer(&payload[i*sgeSize])) = s
		w.Dma.Length += s.Length
		w.Dma.NumSge++
	}
	w.Dma.Resid = w.Dma.Length
	r.prod.Store((prod + 1) & r.mask)
}

// nextEvent waits for an event of the QP.
func (c *conn) nextEvent() verbs.AsyncEventType {
	c.n.t.Helper()
	select {
	case e := <-c.events:
		return e
	case <-time.After(10 * time.Second):
		c.n.t.Fatal("no event")
		return 0
	}
}

// counter returns a counter of the device.
func (n *node) counter(name string) uint64 {
	for _, c := range n.dev.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	n.t.Fatalf("no counter %s", name)
	return 0
}

// fill writes a pattern to b.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
}
