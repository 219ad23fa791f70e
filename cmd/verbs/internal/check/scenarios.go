package check

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// scenario is something that a device must do or refuse. Both ends run the same function.
type scenario struct {
	name string
	options
	run func(*end)
}

func needs(features ...uverbs.Feature) options { return options{features: features} }

var scenarios = []scenario{
	{"SEND", options{}, send(1000)},
	{"SEND with immediate", options{noIWARP: "iWARP has no immediates"}, sendImm},
	{"SEND inline", options{}, sendInline},
	{"SEND of the most SGEs", options{maxSGL: true}, sendSGL},
	{"SEND of 0 bytes", options{}, send(0)},
	{"SEND of 1 MiB", options{memory: 2 << 20}, send(1 << 20)},
	{"SEND with invalidate", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureInvalidate, uverbs.FeatureMWType2}}, sendInvalidate},
	{"RDMA WRITE", options{}, write(20000)},
	{"RDMA WRITE with immediate", options{noIWARP: "iWARP has no immediates"}, writeImm},
	{"RDMA WRITE of 1 MiB", options{memory: 2 << 20}, write(1 << 20)},
	{"RDMA READ", options{}, read(20000)},
	{"RDMA READ of 1 MiB", options{memory: 2 << 20}, read(1 << 20)},
	{"atomic compare and swap", needs(uverbs.FeatureAtomics), compareSwap},
	{"atomic fetch and add", needs(uverbs.FeatureAtomics), fetchAdd},
	{"fence behind a READ", options{}, fence},
	{"512 messages through queues of 16", options{}, rounds(1)},
	{"512 messages, 1 in 16 signaled", options{}, rounds(depth)},
	{"512 messages to an SRQ", options{srq: true, features: []uverbs.Feature{uverbs.FeatureSRQ}}, rounds(1)},
	{"UC", options{typ: verbs.UC, features: []uverbs.Feature{uverbs.FeatureUC}}, unreliable},
	{"UD, answered", options{typ: verbs.UD, features: []uverbs.Feature{uverbs.FeatureUD, uverbs.FeatureAH}}, datagrams},
	{"CQ events", options{events: true}, events},
	{"CQ resize", needs("CQ resize"), resize},
	{"memory window of type 1", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureMWType1}}, windowType1},
	{"memory window of type 2", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureMWType2}}, windowType2},
	{"wrong key", options{}, func(e *end) {
		e.refused(e.remote(verbs.OpRDMARead, e.peer.RKey^0x5500, e.mr.SGE(0, 64)))
	}},
	{"receiver not ready", options{noRNR: true, noIWARP: "iWARP ends the connection"}, notReady},
	{"memory registered again with other rights", options{local: true, features: []uverbs.Feature{uverbs.FeatureReregAccess}}, reregister},
	{"256 memory regions", options{}, regions},
	{"connection manager", options{cm: true}, send(1000)},
}

func send(n int) func(*end) { return func(e *end) { e.message(n, 1, nil) } }

const immediate = 0x01020304

// hasImmediate ends the scenario unless the completion of a receive has the immediate.
func (e *end) hasImmediate(wc verbs.WC, want verbs.WCOpcode) {
	if wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != immediate || wc.Opcode != want {
		e.must(fmt.Errorf("%v has completed with flags %#x and immediate %#x, not %v with %#x", wc.Opcode, wc.Flags, wc.Imm(), want, uint32(immediate)))
	}
}

func sendImm(e *end) {
	wc := e.message(1000, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.Imm = verbs.OpSendImm, immediate })
	if !e.active {
		e.hasImmediate(wc, verbs.WCRecv)
	}
}

func writeImm(e *end) {
	sgl := e.scatter(1000, 1)
	if e.active {
		e.fill(sgl)
		e.sync()
		wr := e.remote(verbs.OpRDMAWriteImm, e.peer.RKey, sgl...)
		wr.Imm = immediate
		e.post(wr)
		return
	}
	e.recv(1)
	e.sync()
	e.hasImmediate(e.received(1, 1000), verbs.WCRecvRDMAImm)
	e.compare(sgl)
}

func sendInline(e *end) {
	for _, n := range []int{1, 13, inline} {
		e.step = fmt.Sprintf("%d bytes", n)
		e.message(n, 1, func(wr *verbs.SendWR) { wr.SGL, wr.Inline = nil, e.mr.Bytes()[:n] })
	}
}

// sendSGL gathers and scatters by as many SGEs as each end's queues take.
func sendSGL(e *end) {
	pieces := e.qp.Cap().MaxSendSGE
	if !e.active {
		pieces = e.qp.Cap().MaxRecvSGE
	}
	e.message(4096, min(pieces, 256), nil)
}

// sendInvalidate revokes the key of a window of the peer's by a message.
func sendInvalidate(e *end) {
	mw, key := e.bind(verbs.MWType2, 1000)
	wc := e.message(10, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.RKey = verbs.OpSendInv, key })
	if !e.active && (wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != mw.RKey()) {
		e.must(fmt.Errorf("the receive has flags %#x and the invalidated key %#x, not %#x", wc.Flags, wc.InvalidatedRKey(), mw.RKey()))
	}
	e.refused(e.remote(verbs.OpRDMAWrite, key, e.mr.SGE(0, 100)))
}

func write(n int) func(*end) { return func(e *end) { e.write(e.peer.RKey, n) } }

func read(n int) func(*end) {
	return func(e *end) {
		sgl := e.scatter(n, 1)
		if !e.active {
			e.fill(sgl)
			e.sync()
			return
		}
		e.sync()
		e.post(e.remote(verbs.OpRDMARead, e.peer.RKey, sgl...))
		e.compare(sgl)
	}
}

// atomics lets the active end change the passive end's word, which is 5 at first, and checks what
// it was before each request, and what it is in the end.
func (e *end) atomics(last uint64, wrs ...verbs.SendWR) {
	word := e.mr.Bytes()[:8]
	if !e.active {
		binary.NativeEndian.PutUint64(word, 5)
		e.sync()
		e.sync()
		if is := binary.NativeEndian.Uint64(word); is != last {
			e.must(fmt.Errorf("the word is %d in the end, not %d", is, last))
		}
		return
	}
	e.sync()
	want := uint64(5)
	for _, wr := range wrs {
		wr.RemoteAddr, wr.RKey, wr.SGL = e.peer.Addr, e.peer.RKey, []verbs.SGE{e.mr.SGE(0, 8)}
		e.post(wr)
		if was := binary.NativeEndian.Uint64(word); was != want {
			e.must(fmt.Errorf("the word was %d, not %d", was, want))
		}
		switch {
		case wr.Opcode == verbs.OpFetchAdd:
			want += wr.Args.CompareAdd
		case wr.Args.CompareAdd == want:
			want = wr.Args.Swap
		}
	}
	e.sync()
}

func compareSwap(e *end) {
	cas := func(compare, swap uint64) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: compare, Swap: swap}}
	}
	e.atomics(1<<40+7, cas(5, 10), cas(5, 11), cas(10, 1<<40+7), cas(0, 0))
}

func fetchAdd(e *end) {
	add := verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 1<<33 + 1}}
	e.atomics(5+3*(1<<33+1), add, add, add)
}

// fence writes back what a READ before it brings: without the fence the WRITE may be of the old
// data.
func fence(e *end) {
	const n, there = 8000, 16 << 10
	from, to := []verbs.SGE{e.mr.SGE(0, n)}, []verbs.SGE{e.mr.SGE(there, n)}
	if e.active {
		e.sync()
		back := e.remote(verbs.OpRDMAWrite, e.peer.RKey, from...)
		back.RemoteAddr += there
		back.Flags = verbs.SendFence
		e.post(e.remote(verbs.OpRDMARead, e.peer.RKey, from...), back, verbs.SendWR{Opcode: verbs.OpSend})
		return
	}
	e.fill(from)
	e.seed--
	e.recv(1)
	e.sync()
	e.received(1, 0)
	e.compare(to)
}

// rounds sends 32 times as many messages as fill a queue, so that queues wrap, of which one in
// every is signaled.
func rounds(every int) func(*end) {
	const n = 256
	return func(e *end) {
		piece := func(i int) []verbs.SGE { return []verbs.SGE{e.mr.SGE(i*n, n)} }
		for round := range 32 {
			e.step = fmt.Sprintf("round %d", round)
			var wrs []verbs.SendWR
			for i := range depth {
				if !e.active {
					e.recv(uint64(i), piece(i)...)
					continue
				}
				e.fill(piece(i))
				wr := verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGL: piece(i)}
				if (i+1)%every == 0 {
					wr.Flags = verbs.SendSignaled
				}
				wrs = append(wrs, wr)
			}
			e.sync()
			e.send(wrs...)
			for i := range depth {
				switch {
				case !e.active:
					e.received(uint64(i), n)
					e.compare(piece(i))
				case (i+1)%every == 0:
					e.completed(i)
				}
			}
		}
		e.idle(e.sendCQ)
		e.idle(e.recvCQ)
	}
}

// completed waits for the completion of a request with an ID.
func (e *end) completed(id int) {
	if wc := e.wait(e.sendCQ); wc.ID != uint64(id) {
		e.must(fmt.Errorf("completion of request %d, not %d", wc.ID, id))
	}
}

func unreliable(e *end) {
	e.message(1000, 1, nil)
	e.write(e.peer.RKey, 5000)
}

// datagrams sends one, which is answered to where its GRH says that it comes from, or on InfiniBand
// its LID.
func datagrams(e *end) {
	const n, at = 500, 4096 // which any MTU carries
	in := []verbs.SGE{e.mr.SGE(0, verbs.GRHSize), e.mr.SGE(at, n)}
	out := []verbs.SGE{e.mr.SGE(2*at, n)}
	receive := func() verbs.WC {
		wc := e.received(1, verbs.GRHSize+n)
		e.compare(in[1:])
		return wc
	}
	e.recv(1, in...)
	e.sync()
	if e.active {
		e.fill(out)
		e.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: out, To: e.to})
		receive()
		return
	}
	wc := receive()
	if wc.SrcQP != e.peer.QP.QPNum {
		e.must(fmt.Errorf("the receive is from QP %d, not %d", wc.SrcQP, e.peer.QP.QPNum))
	}
	ah, err := e.pd.CreateReplyAH(e.num, &wc, e.mr.Bytes()[:verbs.GRHSize])
	e.must(err)
	defer ah.Close()
	e.fill(out)
	e.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: out, To: ah.To(wc.SrcQP, qkey)})
}

// events sends messages, before whose completion both ends sleep.
func events(e *end) {
	ctx, cancel := context.WithTimeoutCause(e.ctx, completionLimit, fmt.Errorf("no event within %v", completionLimit))
	defer cancel()
	for i := range 20 {
		e.step = fmt.Sprintf("message %d", i)
		cq := e.recvCQ
		if e.active {
			cq = e.sendCQ
		} else {
			e.recv(uint64(i), e.mr.SGE(0, 100))
		}
		e.must(cq.Arm(false))
		e.sync()
		if e.active {
			e.send(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 100)}})
		}
		if err := cq.Wait(ctx); err != nil {
			e.must(errors.Join(context.Cause(ctx), err))
		}
		e.wait(cq)
	}
}

// resize makes the active end's CQ larger while completions are in it.
func resize(e *end) {
	if e.active {
		var wrs []verbs.SendWR
		for i := range uint64(8) {
			wr := e.remote(verbs.OpRDMAWrite, e.peer.RKey, e.mr.SGE(0, 8))
			wr.ID, wr.Flags = i, verbs.SendSignaled
			wrs = append(wrs, wr)
		}
		e.send(wrs...)
		e.must(e.sendCQ.Resize(500))
		for i := range 8 {
			e.completed(i)
		}
	}
	e.message(1000, 1, nil)
}

func windowType1(e *end) {
	e.window(verbs.MWType1, func(mw *uverbs.MW) { e.rebind(mw, uverbs.BindOptions{}) })
}

func windowType2(e *end) {
	e.window(verbs.MWType2, func(mw *uverbs.MW) {
		e.post(verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
	})
}

// window writes by a window until it is revoked.
func (e *end) window(typ verbs.MWType, revoke func(*uverbs.MW)) {
	mw, key := e.bind(typ, 1000)
	e.write(key, 1000)
	if !e.active {
		e.step = "revoke"
		revoke(mw)
		e.step = ""
	}
	e.refused(e.remote(verbs.OpRDMAWrite, key, e.mr.SGE(0, 100)))
}

func notReady(e *end) {
	e.sync()
	if e.active {
		e.send(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
		e.fails(e.sendCQ, "the request", verbs.WCRNRRetryExcErr)
	}
}

func reregister(e *end) {
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if !e.active {
		e.must(e.mr.Rereg(uverbs.ReregOptions{Access: &all}))
	}
	e.write(e.newKey(e.mr.RKey()), 1000)
}

// regions registers many regions at once, with a key each, and writes to the last.
func regions(e *end) {
	keys := map[uint32]bool{e.mr.RKey(): true}
	for range 255 {
		e.step = fmt.Sprintf("region %d", len(keys))
		mr := e.region(4096, e.access)
		if keys[mr.RKey()] {
			e.must(fmt.Errorf("two regions have the key %#x", mr.RKey()))
		}
		keys[mr.RKey()] = true
		e.mr = mr
	}
	e.step = ""
	m := e.share(message{Addr: e.mr.Addr(), RKey: e.mr.RKey()})
	e.peer.Addr, e.peer.RKey = m.Addr, m.RKey
	e.write(m.RKey, 4096)
}
