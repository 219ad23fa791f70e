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
	run func(*end) error
}

func needs(features ...uverbs.Feature) options { return options{features: features} }

var scenarios = []scenario{
	{"SEND", options{}, send(1000, nil)},
	{"SEND with immediate", options{noIWARP: "iWARP has no immediates"}, sendImm},
	{"SEND inline", options{}, sendInline},
	{"SEND of the most SGEs", options{maxSGL: true}, sendSGL},
	{"SEND of 0 bytes", options{}, send(0, nil)},
	{"SEND of 1 MiB", options{memory: 2 << 20}, send(1<<20, nil)},
	{"SEND with invalidate", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureInvalidate, uverbs.FeatureMWType2}}, sendInvalidate},
	{"RDMA WRITE", options{}, write(20000)},
	{"RDMA WRITE with immediate", options{noIWARP: "iWARP has no immediates"}, writeImm},
	{"RDMA WRITE of 1 MiB", options{memory: 2 << 20}, write(1 << 20)},
	{"RDMA READ", options{}, read(20000)},
	{"RDMA READ of 1 MiB", options{memory: 2 << 20}, read(1 << 20)},
	{"atomic compare and swap", needs(uverbs.FeatureAtomics), compareSwap},
	{"atomic fetch and add", needs(uverbs.FeatureAtomics), fetchAdd},
	{"fence behind a READ", options{}, fence},
	{"512 messages through queues of 16", options{}, func(e *end) error { return e.rounds(1) }},
	{"512 messages, 1 in 16 signaled", options{}, func(e *end) error { return e.rounds(depth) }},
	{"512 messages to an SRQ", options{srq: true, features: []uverbs.Feature{uverbs.FeatureSRQ}}, func(e *end) error { return e.rounds(1) }},
	{"UC", options{typ: verbs.UC, features: []uverbs.Feature{uverbs.FeatureUC}}, unreliable},
	{"UD, answered", options{typ: verbs.UD, features: []uverbs.Feature{uverbs.FeatureUD, uverbs.FeatureAddressHandles}}, datagrams},
	{"CQ events", options{events: true}, events},
	{"CQ resize", needs(uverbs.FeatureCQResize), resize},
	{"memory window of type 1", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureMWType1}}, windowType1},
	{"memory window of type 2", options{extra: verbs.AccessMWBind, features: []uverbs.Feature{uverbs.FeatureMWType2}}, windowType2},
	{"wrong key", options{}, func(e *end) error {
		return e.refused(e.remote(verbs.OpRDMARead, e.peer.RKey^0x5500, e.mr.SGE(0, 64)))
	}},
	{"receiver not ready", options{noRNR: true, noIWARP: "iWARP ends the connection"}, notReady},
	{"memory registered again with other rights", options{local: true, features: []uverbs.Feature{uverbs.FeatureReregAccess}}, reregister},
	{"256 memory regions", options{}, regions},
	{"connection manager", options{cm: true}, send(1000, nil)},
}

func send(n int, change func(*verbs.SendWR)) func(*end) error {
	return func(e *end) error {
		_, err := e.message(n, 1, change)
		return err
	}
}

const immediate = 0x01020304

// immediateIn returns an error unless the completion of a receive has the immediate.
func (e *end) immediateIn(wc verbs.WC, err error, want verbs.WCOpcode) error {
	if err == nil && !e.active && (wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != immediate || wc.Opcode != want) {
		err = fmt.Errorf("%v has completed with flags %#x and immediate %#x, not %v with %#x", wc.Opcode, wc.Flags, wc.Imm(), want, uint32(immediate))
	}
	return err
}

func sendImm(e *end) error {
	wc, err := e.message(1000, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.Imm = verbs.OpSendImm, immediate })
	return e.immediateIn(wc, err, verbs.WCRecv)
}

func writeImm(e *end) error {
	if e.active {
		sgl := e.scatter(1000, 1)
		e.fill(sgl)
		if err := e.sync(); err != nil {
			return err
		}
		wr := e.remote(verbs.OpRDMAWriteImm, e.peer.RKey, sgl...)
		wr.Imm = immediate
		return e.post(wr)
	}
	if err := e.recv(1); err != nil {
		return err
	}
	if err := e.sync(); err != nil {
		return err
	}
	wc, err := e.received(1, 1000)
	return errors.Join(e.immediateIn(wc, err, verbs.WCRecvRDMAImm), e.compare(e.scatter(1000, 1)))
}

func sendInline(e *end) error {
	for _, n := range []int{1, 13, inline} {
		_, err := e.message(n, 1, func(wr *verbs.SendWR) { wr.SGL, wr.Inline = nil, e.mr.Bytes()[:n] })
		if err != nil {
			return fmt.Errorf("%d bytes: %w", n, err)
		}
	}
	return nil
}

// sendSGL gathers and scatters by as many SGEs as each end's queues take.
func sendSGL(e *end) error {
	pieces := e.qp.Cap().MaxSendSGE
	if !e.active {
		pieces = e.qp.Cap().MaxRecvSGE
	}
	_, err := e.message(4096, min(pieces, 256), nil)
	return err
}

// sendInvalidate revokes the key of a window of the peer's by a message.
func sendInvalidate(e *end) error {
	mw, key, err := e.bind(verbs.MWType2, 1000)
	if err != nil {
		return err
	}
	wc, err := e.message(10, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.InvalidateRKey = verbs.OpSendInv, key })
	if err != nil {
		return err
	}
	if !e.active && (wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != mw.RKey()) {
		return fmt.Errorf("the receive has flags %#x and the invalidated key %#x, not %#x", wc.Flags, wc.InvalidatedRKey(), mw.RKey())
	}
	return e.refused(e.remote(verbs.OpRDMAWrite, key, e.mr.SGE(0, 100)))
}

func write(n int) func(*end) error {
	return func(e *end) error { return e.write(e.peer.RKey, n) }
}

func read(n int) func(*end) error {
	return func(e *end) error {
		sgl := e.scatter(n, 1)
		if !e.active {
			e.fill(sgl)
			return e.sync()
		}
		if err := e.sync(); err != nil {
			return err
		}
		if err := e.post(e.remote(verbs.OpRDMARead, e.peer.RKey, sgl...)); err != nil {
			return err
		}
		return e.compare(sgl)
	}
}

// atomics lets the active end change the passive end's word, which is 5 at first, and checks what it was
// before each request, and what it is in the end.
func (e *end) atomics(last uint64, wrs ...verbs.SendWR) error {
	word := e.mr.Bytes()[:8]
	if !e.active {
		binary.NativeEndian.PutUint64(word, 5)
		if err := errors.Join(e.sync(), e.sync()); err != nil {
			return err
		}
		if is := binary.NativeEndian.Uint64(word); is != last {
			return fmt.Errorf("the word is %d in the end, not %d", is, last)
		}
		return nil
	}
	if err := e.sync(); err != nil {
		return err
	}
	want := uint64(5)
	for _, wr := range wrs {
		wr.RemoteAddr, wr.RKey, wr.SGL = e.peer.Addr, e.peer.RKey, []verbs.SGE{e.mr.SGE(0, 8)}
		if err := e.post(wr); err != nil {
			return err
		}
		if was := binary.NativeEndian.Uint64(word); was != want {
			return fmt.Errorf("the word was %d, not %d", was, want)
		}
		switch {
		case wr.Opcode == verbs.OpFetchAdd:
			want += wr.CompareAdd
		case wr.CompareAdd == want:
			want = wr.Swap
		}
	}
	return e.sync()
}

func compareSwap(e *end) error {
	cas := func(compare, swap uint64) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: compare, Swap: swap}
	}
	return e.atomics(1<<40+7, cas(5, 10), cas(5, 11), cas(10, 1<<40+7), cas(0, 0))
}

func fetchAdd(e *end) error {
	add := verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 1<<33 + 1}
	return e.atomics(5+3*(1<<33+1), add, add, add)
}

// fence writes back what a READ before it brings: without the fence the WRITE may be of the old data.
func fence(e *end) error {
	const n, there = 8000, 16 << 10
	from, to := []verbs.SGE{e.mr.SGE(0, n)}, []verbs.SGE{e.mr.SGE(there, n)}
	if e.active {
		if err := e.sync(); err != nil {
			return err
		}
		back := e.remote(verbs.OpRDMAWrite, e.peer.RKey, from...)
		back.RemoteAddr += there
		back.Flags = verbs.SendFence
		return e.post(e.remote(verbs.OpRDMARead, e.peer.RKey, from...), back, verbs.SendWR{Opcode: verbs.OpSend})
	}
	e.fill(from)
	e.seed--
	if err := errors.Join(e.recv(1), e.sync()); err != nil {
		return err
	}
	if _, err := e.received(1, 0); err != nil {
		return err
	}
	return e.compare(to)
}

// rounds sends 32 times as many messages as fill a queue, so that queues wrap, of which one in every is
// signaled.
func (e *end) rounds(every int) error {
	const n = 256
	piece := func(i int) []verbs.SGE { return []verbs.SGE{e.mr.SGE(i*n, n)} }
	for round := range 32 {
		var wrs []verbs.SendWR
		for i := range depth {
			if !e.active {
				if err := e.recv(uint64(i), piece(i)...); err != nil {
					return err
				}
				continue
			}
			e.fill(piece(i))
			wr := verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGL: piece(i)}
			if (i+1)%every == 0 {
				wr.Flags = verbs.SendSignaled
			}
			wrs = append(wrs, wr)
		}
		if err := e.sync(); err != nil {
			return err
		}
		if _, err := e.qp.PostSend(wrs...); err != nil {
			return fmt.Errorf("round %d: %w", round, err)
		}
		for i := range depth {
			var wc verbs.WC
			var err error
			switch {
			case !e.active:
				if wc, err = e.received(uint64(i), n); err == nil {
					err = e.compare(piece(i))
				}
			case (i+1)%every == 0:
				if wc, err = e.wait(e.sendCQ); err == nil && wc.ID != uint64(i) {
					err = fmt.Errorf("completion of request %d, not %d", wc.ID, i)
				}
			}
			if err != nil {
				return fmt.Errorf("round %d: %w", round, err)
			}
		}
	}
	return errors.Join(e.idle(e.sendCQ), e.idle(e.recvCQ))
}

func unreliable(e *end) error {
	if _, err := e.message(1000, 1, nil); err != nil {
		return err
	}
	return e.write(e.peer.RKey, 5000)
}

// datagrams sends one, which is answered to where its GRH says that it comes from, or on InfiniBand its LID.
func datagrams(e *end) error {
	const n, at = 500, 4096 // which any MTU carries
	in := []verbs.SGE{e.mr.SGE(0, verbs.GRHSize), e.mr.SGE(at, n)}
	out := []verbs.SGE{e.mr.SGE(2*at, n)}
	receive := func() (wc verbs.WC, err error) {
		wc, err = e.received(1, verbs.GRHSize+n)
		return wc, errors.Join(err, e.compare(in[1:]))
	}
	if err := errors.Join(e.recv(1, in...), e.sync()); err != nil {
		return err
	}
	if e.active {
		e.fill(out)
		if err := e.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: out, To: e.to}); err != nil {
			return err
		}
		_, err := receive()
		return err
	}
	wc, err := receive()
	if err != nil {
		return err
	}
	if wc.SrcQP != e.peer.QP.QPNum {
		return fmt.Errorf("the receive is from QP %d, not %d", wc.SrcQP, e.peer.QP.QPNum)
	}
	ah, err := e.pd.CreateReplyAH(e.num, &wc, e.mr.Bytes()[:verbs.GRHSize])
	if err != nil {
		return err
	}
	e.fill(out)
	return errors.Join(e.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: out, To: ah.To(wc.SrcQP, qkey)}), ah.Close())
}

// events sends messages, before whose completion both ends sleep.
func events(e *end) error {
	ctx, cancel := context.WithTimeoutCause(e.ctx, completionLimit, fmt.Errorf("no event within %v", completionLimit))
	defer cancel()
	for i := range 20 {
		cq := e.recvCQ
		if e.active {
			cq = e.sendCQ
		} else if err := e.recv(uint64(i), e.mr.SGE(0, 100)); err != nil {
			return err
		}
		if err := errors.Join(cq.Arm(false), e.sync()); err != nil {
			return err
		}
		if e.active {
			if _, err := e.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{e.mr.SGE(0, 100)}}); err != nil {
				return err
			}
		}
		if err := cq.Wait(ctx); err != nil {
			return fmt.Errorf("message %d: %w", i, errors.Join(context.Cause(ctx), err))
		}
		if _, err := e.wait(cq); err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	return nil
}

// resize makes the active end's CQ larger while completions are in it.
func resize(e *end) error {
	if e.active {
		var wrs []verbs.SendWR
		for i := range uint64(8) {
			wr := e.remote(verbs.OpRDMAWrite, e.peer.RKey, e.mr.SGE(0, 8))
			wr.ID, wr.Flags = i, verbs.SendSignaled
			wrs = append(wrs, wr)
		}
		if _, err := e.qp.PostSend(wrs...); err != nil {
			return err
		}
		if err := e.sendCQ.Resize(500); err != nil {
			return err
		}
		for i := range uint64(8) {
			if wc, err := e.wait(e.sendCQ); err != nil || wc.ID != i {
				return fmt.Errorf("completion of request %d, not %d: %w", wc.ID, i, err)
			}
		}
	}
	_, err := e.message(1000, 1, nil)
	return err
}

func windowType1(e *end) error {
	return e.window(verbs.MWType1, func(mw *uverbs.MW) error { return e.rebind(mw, uverbs.BindOptions{}) })
}

func windowType2(e *end) error {
	return e.window(verbs.MWType2, func(mw *uverbs.MW) error {
		return e.post(verbs.SendWR{Opcode: verbs.OpLocalInv, InvalidateRKey: mw.RKey()})
	})
}

// window writes by a window until it is revoked.
func (e *end) window(typ verbs.MWType, revoke func(*uverbs.MW) error) error {
	mw, key, err := e.bind(typ, 1000)
	if err != nil {
		return err
	}
	if err := e.write(key, 1000); err != nil {
		return err
	}
	if !e.active {
		if err := revoke(mw); err != nil {
			return fmt.Errorf("revoke: %w", err)
		}
	}
	return e.refused(e.remote(verbs.OpRDMAWrite, key, e.mr.SGE(0, 100)))
}

func notReady(e *end) error {
	if !e.active {
		return e.sync()
	}
	if err := e.sync(); err != nil {
		return err
	}
	err := e.post(verbs.SendWR{Opcode: verbs.OpSend})
	return e.status("the request", err, verbs.WCRNRRetryExcErr)
}

func reregister(e *end) error {
	all := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if !e.active {
		if err := e.mr.Rereg(uverbs.ReregOptions{Access: &all}); err != nil {
			return err
		}
	}
	key, err := e.newKey(e.mr.RKey())
	if err != nil {
		return err
	}
	return e.write(key, 1000)
}

// regions registers many regions at once, with a key each, and writes to the last.
func regions(e *end) error {
	keys := map[uint32]bool{e.mr.RKey(): true}
	for range 255 {
		mr, err := e.region(4096, e.access)
		if err != nil {
			return fmt.Errorf("region %d: %w", len(keys), err)
		}
		if keys[mr.RKey()] {
			return fmt.Errorf("two regions have the key %#x", mr.RKey())
		}
		keys[mr.RKey()] = true
		e.mr = mr
	}
	m, err := e.swap(message{Addr: e.mr.Addr(), RKey: e.mr.RKey()})
	if err != nil {
		return err
	}
	e.peer.Addr, e.peer.RKey = m.Addr, m.RKey
	return e.write(m.RKey, 4096)
}
