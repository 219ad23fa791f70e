package scenario

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

// Shorter names for the list.
const (
	local   = verbs.AccessLocalWrite
	binds   = verbs.AccessMWBind
	flushes = verbs.AccessFlushGlobal
	paged   = verbs.AccessOnDemand
)

func needs(features ...uverbs.Feature) Options { return Options{Features: features} }

// List has all scenarios.
var List = slices.Concat(messages, remote, atomics, refusals(), queues, others, windows, regions, onDemand)

var messages = []Scenario{
	{"SEND", "qpex/qp_ex_rc_send", Options{}, send(1000)},
	{"SEND with immediate", "qpex/qp_ex_rc_send_imm", needs(uverbs.FeatureImmediates), sendImm},
	{"SEND inline", "", Options{}, sendInline},
	{"SEND of the most SGEs", "", Options{MaxSGL: true}, sendSGL},
	{"SEND of 0 bytes", "", Options{}, send(0)},
	{"SEND of 1 MiB", "", Options{Memory: 2 << 20}, send(1 << 20)},
	{"SEND in turns", "parent_domain/default_allocators_rc_traffic", Options{}, turns(1000)},
	{"SEND of unaligned memory", "parent_domain/mem_align_rc_traffic", Options{}, unaligned},
	{"SEND with invalidate", "mr/mw_type2_invalidate_remote", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureInvalidate, uverbs.FeatureMWType2}}, sendInvalidate},
}

var remote = []Scenario{
	{"RDMA WRITE", "qpex/qp_ex_rc_rdma_write", Options{}, write(20000)},
	{"RDMA WRITE with immediate", "qpex/qp_ex_rc_rdma_write_imm", needs(uverbs.FeatureImmediates), writeImm},
	{"RDMA WRITE of 0 bytes", "qpex/qp_ex_rc_rdma_write_zero_size", Options{}, write(0)},
	{"RDMA WRITE of 1 MiB", "", Options{Memory: 2 << 20}, write(1 << 20)},
	{"RDMA READ", "qpex/qp_ex_rc_rdma_read", Options{}, read(20000)},
	{"RDMA READ of 0 bytes", "qpex/qp_ex_rc_rdma_read_zero_size", Options{}, read(0)},
	{"RDMA READ of 1 MiB", "", Options{Memory: 2 << 20}, read(1 << 20)},
	{"fence behind a READ", "", Options{}, fence},
	{"atomic WRITE", "qpex/qp_ex_rc_atomic_write", needs(uverbs.FeatureAtomicWrite), atomicWrite},
	{"FLUSH", "qpex/qp_ex_rc_flush", Options{Extra: flushes, RC: uverbs.ConnectOptions{Access: verbs.AccessAll | flushes}, Features: []uverbs.Feature{uverbs.FeatureFlush}}, flush},
	{"FLUSH without the right", "qpex/qp_ex_rc_flush_type_violate", needs(uverbs.FeatureFlush), func(a *Actor) {
		a.refused(a.flush(7), verbs.WCRemAccessErr, verbs.WCRemInvReqErr)
	}},
	{"receiver not ready", "", Options{RC: uverbs.ConnectOptions{RNRRetry: -1}}, notReady},
	{"destroyed QP", "", Options{RC: uverbs.ConnectOptions{Timeout: 8, RetryCount: 1}}, func(a *Actor) {
		if !a.Active {
			a.Must(a.QP.Close())
		}
		a.ended(a.Request(verbs.OpRDMAWrite, a.Remote.RKey, a.MR.SGE(0, 64)), verbs.WCRetryExcErr)
	}},
}

var atomics = []Scenario{
	{"atomic compare and swap", "atomic/atomic_cmp_and_swp qpex/qp_ex_rc_atomic_cmp_swp", needs(uverbs.FeatureAtomics), compareSwap},
	{"atomic fetch and add", "atomic/atomic_fetch_and_add qpex/qp_ex_rc_atomic_fetch_add", needs(uverbs.FeatureAtomics), fetchAdd},
}

var queues = []Scenario{
	{"512 messages through queues of 16", "", Options{}, rounds(1)},
	{"512 messages, 1 in 16 signaled", "", Options{}, rounds(depth)},
	{"512 messages to an SRQ", "srq/rc_srq_traffic parent_domain/mem_align_srq_excq_rc_traffic", Options{SRQ: true, Features: []uverbs.Feature{uverbs.FeatureSRQ}}, rounds(1)},
	{"SRQ resize", "srq/resize_srq", Options{SRQ: true, Features: []uverbs.Feature{uverbs.FeatureSRQ, uverbs.FeatureSRQResize}}, resizeSRQ},
	{"one CQ for both queues", "cqex/rc_traffic_cq_ex", Options{OneCQ: true}, turns(1000)},
	{"CQ events", "cq_events/cq_events_rc", Options{Events: true}, events},
	{"CQ events, UD", "cq_events/cq_events_ud", Options{Type: verbs.UD, Events: true, Features: datagramFeatures}, events},
	{"CQ resize", "cq/resize_cq", needs(uverbs.FeatureCQResize), resizeCQ},
}

var datagramFeatures = []uverbs.Feature{uverbs.FeatureUD, uverbs.FeatureAH}

var others = []Scenario{
	{"UC", "", Options{Type: verbs.UC, Features: []uverbs.Feature{uverbs.FeatureUC}}, unreliable},
	{"UD, answered", "qpex/qp_ex_ud_send cqex/ud_traffic_cq_ex parent_domain/mem_align_ud_traffic", Options{Type: verbs.UD, Features: datagramFeatures}, datagrams(verbs.OpSend, 500)},
	{"UD with immediate", "qpex/qp_ex_ud_send_imm", Options{Type: verbs.UD, Features: datagramFeatures}, datagrams(verbs.OpSendImm, 8)},
	{"UD of 0 bytes", "qpex/qp_ex_ud_zero_size", Options{Type: verbs.UD, Features: datagramFeatures}, datagrams(verbs.OpSend, 0)},
	{"connection manager", "", Options{CM: true}, send(1000)},
	{"limits of READs and atomics", "qp/modify_rc_qp_rd_atomic", Options{RC: uverbs.ConnectOptions{MaxRDAtomic: 8, MaxDestRDAtomic: 8}, NoIWARP: "the connection manager sets them"}, readLimits},
}

var windows = []Scenario{
	{"memory window of type 1", "mr/invalidate_mw_type1", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureMWType1}}, windowType1},
	{"memory window of type 1, next key", "mr/mw_type1", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureMWType1}}, windowNextKey(verbs.MWType1)},
	{"memory window of type 2", "mr/mw_type2_invalidate_local", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureMWType2}}, windowType2},
	{"memory window of type 2, next key", "mr/mw_type2 qpex/qp_ex_rc_bind_mw", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureMWType2}}, windowNextKey(verbs.MWType2)},
	{"memory window of type 2, destroyed", "mr/mw_type2_invalidate_dealloc", Options{Extra: binds, Features: []uverbs.Feature{uverbs.FeatureMWType2}}, windowDestroyed},
}

var regions = []Scenario{
	{"256 memory regions", "", Options{}, manyRegions},
	{"memory registered again", "mr/mr_rereg_addr", needs(uverbs.FeatureReregMemory), reregMemory},
	{"memory registered again with other rights", "mr/mr_rereg_access", Options{Access: local, Features: []uverbs.Feature{uverbs.FeatureReregAccess}}, reregAccess(func(a *Actor) {
		a.Write(a.Remote.RKey, 500)
		a.Read(a.Remote.RKey, 500)
	})},
	{"memory registered again for atomics", "mr/mr_rereg_atomic", Options{Access: local, Features: []uverbs.Feature{uverbs.FeatureReregAccess, uverbs.FeatureAtomics}}, reregAccess(fetchAdd)},
	{"memory registered again without rights", "mr/mr_rereg_access_bad_flow", needs(uverbs.FeatureReregAccess), reregLocal},
	{"memory registered again in another PD", "mr/mr_rereg_pd", needs(uverbs.FeatureReregPD), reregPD},
}

// packet is the size of messages to regions that are paged in on demand: rxe in 7.2 stores data
// after the first packet of a page, or data that crosses into another page, in the wrong place
// (rxe_odp_mr_copy ignores the offset).
const packet = 1024

var onDemand = []Scenario{
	{"on-demand paging: SEND", "odp/odp_rc_traffic", paging(), turns(packet)},
	{"on-demand paging: RDMA READ", "odp/odp_rc_rdma_read", paging(), read(packet)},
	{"on-demand paging: RDMA WRITE", "odp/odp_rc_rdma_write", paging(), write(packet)},
	{"on-demand paging: compare and swap", "odp/odp_rc_atomic_cmp_and_swp", paging(uverbs.FeatureAtomics), compareSwap},
	{"on-demand paging: fetch and add", "odp/odp_rc_atomic_fetch_and_add", paging(uverbs.FeatureAtomics), fetchAdd},
	{"on-demand paging: SEND to pinned memory", "odp/odp_rc_mixed_mr", paging(), func(a *Actor) {
		if !a.Active {
			a.MR = a.region(8192, endpoint.RemoteAccess(a.Dev))
		}
		turns(packet)(a)
	}},
	{"on-demand paging: UD", "odp/odp_ud_traffic", Options{Type: verbs.UD, Extra: paged, Features: append(datagramFeatures, uverbs.FeatureOnDemand)}, pagedDatagrams},
	{"on-demand paging: prefetch", "odp/odp_sync_prefetch_rc_traffic", paging(uverbs.FeatureAdvice), prefetch(verbs.AdvisePrefetchWrite, true)},
	{"on-demand paging: prefetch later", "odp/odp_async_prefetch_rc_traffic", paging(uverbs.FeatureAdvice), prefetch(verbs.AdvisePrefetchWrite, false)},
	{"on-demand paging: prefetch without faults", "odp/odp_prefetch_sync_no_page_fault_rc_traffic", paging(uverbs.FeatureAdvice), prefetch(verbs.AdvisePrefetchNoFault, true)},
}

func paging(features ...uverbs.Feature) Options {
	return Options{Extra: paged, Features: append(features, uverbs.FeatureOnDemand)}
}

// refusals are requests for the passive actor's memory with one fault each.
func refusals() (list []Scenario) {
	const size = 64 << 10 // of the memory
	for _, op := range []struct {
		verbs.Opcode
		name, core string
		right      verbs.Access
		size       int
		features   []uverbs.Feature
	}{
		{verbs.OpRDMAWrite, "RDMA WRITE", "", verbs.AccessRemoteWrite, 64, nil},
		{verbs.OpRDMARead, "RDMA READ", "", verbs.AccessRemoteRead, 64, nil},
		{verbs.OpCompareSwap, "compare and swap", "atomic/atomic_", verbs.AccessRemoteAtomic, 8, []uverbs.Feature{uverbs.FeatureAtomics}},
		{verbs.OpFetchAdd, "fetch and add", "atomic/atomic_", verbs.AccessRemoteAtomic, 8, []uverbs.Feature{uverbs.FeatureAtomics}},
	} {
		remote, local := Options{Features: op.features}, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead
		noMemory, noQP := remote, remote
		noMemory.Access, noQP.RC.Access = local&^op.right, local&^op.right
		noQP.NoIWARP = "its QPs have no rights"
		if op.Opcode == verbs.OpRDMARead { // siw_qp_sq_proc_tx does not check the rights
			noMemory.NoSIW = "siw serves READs of any region"
		}
		add := func(fault, core string, o Options, want verbs.WCStatus, spoil func(*verbs.SendWR)) {
			if op.core != "" && core != "" {
				core = op.core + core
			} else {
				core = ""
			}
			list = append(list, Scenario{op.name + " " + fault, core, o, func(a *Actor) {
				wr := a.Request(op.Opcode, a.Remote.RKey, a.MR.SGE(0, op.size))
				wr.Args = &verbs.SendArgs{CompareAdd: 5, Swap: 10}
				spoil(&wr)
				if want == verbs.WCLocProtErr {
					// rxe's sends fail in other ways (rxe_requester), and erdma's say WCLocAccessErr
					// (map_cqe_status).
					a.refused(wr, want, verbs.WCLocQPOpErr, verbs.WCFlushErr, verbs.WCLocAccessErr)
				} else {
					a.refused(wr, want)
				}
			}})
		}
		add("with a wrong key", "invalid_rkey", remote, verbs.WCRemAccessErr, func(wr *verbs.SendWR) { wr.RKey ^= 0x5500 })
		add("with a wrong local key", "invalid_lkey", remote, verbs.WCLocProtErr, func(wr *verbs.SendWR) { wr.SGL[0].LKey ^= 0x5500 })
		add("beyond the memory", "", remote, verbs.WCRemAccessErr, func(wr *verbs.SendWR) { wr.RemoteAddr += uint64(size - op.size + 8) })
		add("without the memory's right", "invalid_mr_access", noMemory, verbs.WCRemAccessErr, func(*verbs.SendWR) {})
		add("without the QP's right", "invalid_qp_access", noQP, verbs.WCRemInvReqErr, func(*verbs.SendWR) {})
		if op.right == verbs.AccessRemoteAtomic {
			add("at an odd address", "non_aligned_addr", remote, verbs.WCRemInvReqErr, func(wr *verbs.SendWR) { wr.RemoteAddr += 3 })
		}
	}
	return list
}

func send(n int) func(*Actor) { return func(a *Actor) { a.message(n, 1, nil) } }

// notReady sends a message for which there is no receive. On iWARP, which has no RNR NAKs and no count of retries, a
// device may end the connection (RFC 5041, section 7), or keep the message until there is a receive; but it
// must not drop it.
func notReady(a *Actor) {
	data := a.MR.SGE(0, 64)
	if !a.IWARP() {
		a.ended(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{data}}, verbs.WCRNRRetryExcErr)
		return
	}
	if a.Active {
		a.fill(data)
		a.send(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{data}})
		a.Sync() // it is on its way
		a.Sync() // it has come
		return
	}
	a.Sync()
	a.recv(1, data)
	_, err := a.Wait(a.Ctx, a.RecvCQ)
	if wc, is := errors.AsType[*verbs.WCError](err); !is || wc.Status != verbs.WCFlushErr {
		a.Must(err)
		a.compare(data)
	}
	a.Sync()
}

const immediate = 0x01020304

// hasImmediate ends the scenario unless the completion of a receive has the immediate.
func (a *Actor) hasImmediate(wc verbs.WC, want verbs.WCOpcode) {
	if wc.Flags&verbs.WCWithImm == 0 || wc.Imm() != immediate || wc.Opcode != want {
		a.Must(fmt.Errorf("%v has completed with flags %#x and immediate %#x, not %v with %#x", wc.Opcode, wc.Flags, wc.Imm(), want, uint32(immediate)))
	}
}

func sendImm(a *Actor) {
	wc := a.message(1000, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.Imm = verbs.OpSendImm, immediate })
	if !a.Active {
		a.hasImmediate(wc, verbs.WCRecv)
	}
}

func writeImm(a *Actor) {
	sgl := a.scatter(1000, 1)
	if a.Active {
		sgl = a.scatter(1000, 2)
	}
	if a.Active {
		a.fill(sgl...)
		a.Sync()
		wr := a.Request(verbs.OpRDMAWriteImm, a.Remote.RKey, sgl...)
		wr.Imm = immediate
		a.post(wr)
		return
	}
	a.recv(1)
	a.Sync()
	a.hasImmediate(a.received(1, 1000), verbs.WCRecvRDMAImm)
	a.compare(sgl...)
}

func sendInline(a *Actor) {
	for _, n := range []int{1, 13, inline} {
		a.step = fmt.Sprintf("%d bytes", n)
		a.message(n, 1, func(wr *verbs.SendWR) { wr.SGL, wr.Inline = nil, a.MR.Bytes()[:n] })
	}
}

// sendSGL gathers and scatters by as many SGEs as each end's queues take.
func sendSGL(a *Actor) {
	pieces := a.QP.Cap().MaxSendSGE
	if !a.Active {
		pieces = a.QP.Cap().MaxRecvSGE
	}
	a.message(4096, min(pieces, 256), nil)
}

// sendInvalidate revokes the key of a window of the peer's by a message.
func sendInvalidate(a *Actor) {
	mw, key := a.bind(verbs.MWType2, 1000)
	wc := a.message(10, 1, func(wr *verbs.SendWR) { wr.Opcode, wr.RKey = verbs.OpSendInv, key })
	if !a.Active && (wc.Flags&verbs.WCWithInv == 0 || wc.InvalidatedRKey() != mw.RKey()) {
		a.Must(fmt.Errorf("the receive has flags %#x and the invalidated key %#x, not %#x", wc.Flags, wc.InvalidatedRKey(), mw.RKey()))
	}
	a.refused(a.Request(verbs.OpRDMAWrite, key, a.MR.SGE(0, 100)), verbs.WCRemAccessErr)
}

func write(n int) func(*Actor) { return func(a *Actor) { a.Write(a.Remote.RKey, n) } }

func read(n int) func(*Actor) { return func(a *Actor) { a.Read(a.Remote.RKey, n) } }

func turns(n int) func(*Actor) { return func(a *Actor) { a.Turns(20, n) } }

// unaligned sends memory that begins at an odd address.
func unaligned(a *Actor) {
	mr := Own(a.PD.RegisterMR(make([]byte, 8192)[1:], endpoint.RemoteAccess(a.Dev), uverbs.MROptions{}))(a)
	a.Use(mr)
	a.Turns(10, 1000)
}

func atomicWrite(a *Actor) {
	word := a.MR.SGE(8, 8)
	if a.Active {
		a.fill(word)
		wr := a.Request(verbs.OpAtomicWrite, a.Remote.RKey)
		wr.RemoteAddr, wr.Inline = wr.RemoteAddr+8, a.MR.Bytes()[8:16]
		a.post(wr)
		a.Sync()
		return
	}
	a.Sync()
	a.compare(word)
}

// flush returns a FLUSH of the remote memory's first n bytes.
func (a *Actor) flush(n uint32) verbs.SendWR {
	wr := a.Request(verbs.OpFlush, a.Remote.RKey)
	wr.Args = &verbs.SendArgs{Flush: verbs.Flush{Length: n, Type: verbs.FlushGlobal}}
	return wr
}

func flush(a *Actor) {
	data := a.MR.SGE(0, 7)
	if a.Active {
		a.fill(data)
		a.post(a.Request(verbs.OpRDMAWrite, a.Remote.RKey, data), a.flush(7))
		a.Sync()
		return
	}
	a.Sync()
	a.compare(data)
}

func compareSwap(a *Actor) {
	cas := func(compare, swap uint64) verbs.SendWR {
		return verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: compare, Swap: swap}}
	}
	a.atomics(1<<40+7, cas(5, 10), cas(5, 11), cas(10, 1<<40+7), cas(0, 0))
}

func fetchAdd(a *Actor) {
	add := verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: 1<<33 + 1}}
	a.atomics(5+3*(1<<33+1), add, add, add)
}

// fence writes back what a READ before it brings: without the fence the WRITE may be of the old
// data.
func fence(a *Actor) {
	const n, there = 8000, 16 << 10
	from, to := []verbs.SGE{a.MR.SGE(0, n)}, []verbs.SGE{a.MR.SGE(there, n)}
	if a.Active {
		a.Sync()
		back := a.Request(verbs.OpRDMAWrite, a.Remote.RKey, from...)
		back.RemoteAddr += there
		back.Flags = verbs.SendFence
		a.post(a.Request(verbs.OpRDMARead, a.Remote.RKey, from...), back, verbs.SendWR{Opcode: verbs.OpSend})
		return
	}
	a.fill(from...)
	a.seq--
	a.recv(1)
	a.Sync()
	a.received(1, 0)
	a.compare(to...)
}

// rounds sends 32 times as many messages as fill a queue, so that queues wrap, of which one in
// every is signaled.
func rounds(every int) func(*Actor) {
	const n = 256
	return func(a *Actor) {
		piece := func(i int) []verbs.SGE { return []verbs.SGE{a.MR.SGE(i*n, n)} }
		for round := range 32 {
			a.step = fmt.Sprintf("round %d", round)
			var wrs []verbs.SendWR
			for i := range depth {
				if !a.Active {
					a.recv(uint64(i), piece(i)...)
					continue
				}
				a.fill(piece(i)...)
				wr := verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, SGL: piece(i)}
				if (i+1)%every == 0 {
					wr.Flags = verbs.SendSignaled
				}
				wrs = append(wrs, wr)
			}
			a.Sync()
			a.send(wrs...)
			for i := range depth {
				switch {
				case !a.Active:
					a.received(uint64(i), n)
					a.compare(piece(i)...)
				case (i+1)%every == 0:
					a.completed(i)
				}
			}
		}
		a.idle(a.SendCQ)
		a.idle(a.RecvCQ)
	}
}

func unreliable(a *Actor) {
	a.message(1000, 1, nil)
	a.Write(a.Remote.RKey, 5000)
}

// datagrams sends one of n bytes, which is answered to where its GRH says that it comes from, or on
// InfiniBand its LID.
func datagrams(op verbs.Opcode, n int) func(*Actor) {
	return func(a *Actor) { a.datagrams(op, n, a.MR) }
}

// pagedDatagrams sends from paged memory. What is received has a region of its own, as no adapter has page
// faults of datagrams that it receives.
func pagedDatagrams(a *Actor) {
	a.datagrams(verbs.OpSend, 900, a.region(a.MR.Len(), verbs.AccessLocalWrite))
}

func (a *Actor) datagrams(op verbs.Opcode, n int, into *uverbs.MR) {
	const at = 4096
	from := a.MR
	in := []verbs.SGE{into.SGE(0, verbs.GRHSize), into.SGE(at, n)}
	out := from.SGE(2*at, n)
	receive := func() verbs.WC {
		wc := a.received(1, verbs.GRHSize+n)
		if op == verbs.OpSendImm {
			a.hasImmediate(wc, verbs.WCRecv)
		}
		a.MR = into
		a.compare(in[1])
		a.MR = from
		return wc
	}
	send := func(to verbs.UDAddr) {
		a.fill(out)
		a.post(verbs.SendWR{Opcode: op, Imm: immediate, SGL: []verbs.SGE{out}, To: to})
	}
	a.recv(1, in...)
	a.Sync()
	if a.Active {
		send(a.To)
		receive()
		return
	}
	wc := receive()
	if wc.SrcQP != a.Remote.QP.QPNum {
		a.Must(fmt.Errorf("the receive is from QP %d, not %d", wc.SrcQP, a.Remote.QP.QPNum))
	}
	ah, err := a.PD.CreateReplyAH(a.Num, &wc, into.Bytes()[:verbs.GRHSize])
	a.Must(err)
	defer ah.Close()
	send(ah.To(wc.SrcQP, endpoint.QKey))
}

// events sends messages, before whose completion both actors sleep.
func events(a *Actor) {
	ctx, cancel := context.WithTimeoutCause(a.Ctx, endpoint.Limit, fmt.Errorf("no event within %v", endpoint.Limit))
	defer cancel()
	data := a.MR.SGE(verbs.GRHSize, 100)
	for i := range 20 {
		a.step = fmt.Sprintf("message %d", i)
		cq := a.RecvCQ
		if a.Active {
			cq = a.SendCQ
			a.fill(data)
		} else if a.QP.Type() == verbs.UD {
			a.recv(0, a.MR.SGE(0, verbs.GRHSize), data)
		} else {
			a.recv(0, data)
		}
		armed := i%2 == 0 // else PollWait arms the CQ
		if armed {
			a.Must(cq.Arm(false))
		}
		a.Sync()
		if a.Active {
			a.send(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{data}, To: a.To})
		}
		var err error
		if armed {
			if err = cq.Wait(ctx); err == nil {
				a.wait(cq)
			}
		} else {
			var wcs [1]verbs.WC
			_, err = cq.PollWait(ctx, wcs[:])
			a.Must(wcs[0].Err())
		}
		if err != nil {
			a.Must(errors.Join(context.Cause(ctx), err))
		}
		if !a.Active {
			a.compare(data)
		}
	}
}

// resizeCQ makes the active actor's CQ larger while completions are in it.
func resizeCQ(a *Actor) {
	if a.Active {
		var wrs []verbs.SendWR
		for i := range uint64(8) {
			wr := a.Request(verbs.OpRDMAWrite, a.Remote.RKey, a.MR.SGE(0, 8))
			wr.ID, wr.Flags = i, verbs.SendSignaled
			wrs = append(wrs, wr)
		}
		a.send(wrs...)
		a.Must(a.SendCQ.Resize(500))
		if n := a.SendCQ.Cap(); n < 500 {
			a.Must(fmt.Errorf("the CQ has room for %d completions, not 500", n))
		}
		for i := range 8 {
			a.completed(i)
		}
	}
	a.message(1000, 1, nil)
}

// resizeSRQ makes the passive actor's SRQ larger while a receive is in it.
func resizeSRQ(a *Actor) {
	data := a.MR.SGE(0, 10)
	if a.Active {
		a.fill(data)
		a.Sync()
		a.post(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{data}})
	} else {
		a.Must(a.SRQ.Resize(200))
		a.recv(9, data)
		a.Must(a.SRQ.Resize(500))
		got, err := a.SRQ.Query()
		a.Must(err)
		if got.MaxWR < 500 {
			a.Must(fmt.Errorf("the SRQ has room for %d receives, not 500", got.MaxWR))
		}
		a.Sync()
		a.received(9, 10)
		a.compare(data)
	}
	a.Turns(10, 100)
}

// readLimits queries what the QP was connected with.
func readLimits(a *Actor) {
	got, err := a.QP.Query()
	a.Must(err)
	if got.MaxRDAtomic != 8 || got.MaxDestRDAtomic != 8 {
		a.Must(fmt.Errorf("the QP has limits of %d and %d, not 8", got.MaxRDAtomic, got.MaxDestRDAtomic))
	}
}

func windowType1(a *Actor) {
	a.window(verbs.MWType1, func(mw *uverbs.MW) { a.rebind(mw, uverbs.BindOptions{}) })
}

func windowType2(a *Actor) {
	a.window(verbs.MWType2, func(mw *uverbs.MW) {
		a.post(verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: mw.RKey()})
	})
}

func windowDestroyed(a *Actor) {
	a.window(verbs.MWType2, func(mw *uverbs.MW) { a.Must(mw.Close()) })
}

// windowNextKey uses the key that the window would get next.
func windowNextKey(typ verbs.MWType) func(*Actor) {
	return func(a *Actor) {
		_, key := a.bind(typ, 1000)
		a.Write(key, 1000)
		a.refused(a.Request(verbs.OpRDMAWrite, verbs.NextRKey(key), a.MR.SGE(0, 100)), verbs.WCRemAccessErr)
	}
}

// window uses a window until it is revoked.
func (a *Actor) window(typ verbs.MWType, revoke func(*uverbs.MW)) {
	mw, key := a.bind(typ, 1000)
	a.Write(key, 1000)
	a.Read(key, 1000)
	if !a.Active {
		a.step = "revoke"
		revoke(mw)
		a.step = ""
	}
	a.refused(a.Request(verbs.OpRDMAWrite, key, a.MR.SGE(0, 100)), verbs.WCRemAccessErr)
}

// rereg registers the passive actor's memory again.
func (a *Actor) rereg(o uverbs.ReregOptions) {
	if !a.Active {
		a.Must(a.MR.Rereg(o))
	}
	a.Use(a.MR)
}

func reregMemory(a *Actor) {
	a.rereg(uverbs.ReregOptions{Memory: make([]byte, 8192)})
	if n := a.MR.Len(); !a.Active && n != 8192 {
		a.Must(fmt.Errorf("the region has %d bytes, not 8192", n))
	}
	a.Turns(5, 1000)
	a.Write(a.Remote.RKey, 8192)
	a.Read(a.Remote.RKey, 8192)
}

func reregAccess(run func(*Actor)) func(*Actor) {
	return func(a *Actor) {
		all := endpoint.RemoteAccess(a.Dev)
		a.rereg(uverbs.ReregOptions{Access: &all})
		run(a)
	}
}

func reregLocal(a *Actor) {
	none := local
	a.rereg(uverbs.ReregOptions{Access: &none})
	a.refused(a.Request(verbs.OpRDMAWrite, a.Remote.RKey, a.MR.SGE(0, 500)), verbs.WCRemAccessErr)
}

func reregPD(a *Actor) {
	other := Own(a.Dev.AllocPD())(a)
	a.rereg(uverbs.ReregOptions{PD: other})
	name := fmt.Sprintf("MR %#x", a.MR.LKey()) // of now
	if err := other.Close(); !a.Active && (!errors.Is(err, verbs.ErrInUse) || !strings.Contains(err.Error(), name)) {
		a.Must(fmt.Errorf("close a PD with %s: %v, not %w", name, err, verbs.ErrInUse))
	}
	a.refused(a.Request(verbs.OpRDMAWrite, a.Remote.RKey, a.MR.SGE(0, 500)), verbs.WCRemAccessErr)
	if !a.Active {
		a.Must(a.MR.Rereg(uverbs.ReregOptions{PD: a.PD}))
	}
}

// manyRegions registers many regions at once, with a key each, and writes to the last.
func manyRegions(a *Actor) {
	keys, mr := map[uint32]bool{a.MR.RKey(): true}, a.MR
	for range 255 {
		a.step = fmt.Sprintf("region %d", len(keys))
		mr = a.region(4096, endpoint.RemoteAccess(a.Dev))
		if keys[mr.RKey()] {
			a.Must(fmt.Errorf("two regions have the key %#x", mr.RKey()))
		}
		keys[mr.RKey()] = true
	}
	a.step = ""
	a.Use(mr)
	a.Write(a.Remote.RKey, 4096)
}

func prefetch(advice verbs.Advice, wait bool) func(*Actor) {
	return func(a *Actor) {
		a.Must(a.PD.Advise(advice, wait, a.MR.SGE(0, a.MR.Len())))
		turns(packet)(a)
	}
}
