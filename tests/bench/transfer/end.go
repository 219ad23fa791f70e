package main

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const (
	depth  = 128 // requests in flight
	recvs  = 256 // receives
	period = 32  // one request in period is signaled
	credit = 64  // messages received until the sender is notified
	batch  = 32  // completions polled at a time, and requests posted
	inline = 32  // bytes
)

// region describes a side's memory, in native byte order: both sides are on one machine.
type region struct {
	Addr         uint64
	RKey, Unused uint32
}

// The values of work.Events if sides sleep.
const (
	events   = 1
	pollWait = 2
)

// work is a client's request to a server.
type work struct {
	Memory region
	Rate   uint32
	Op     verbs.Opcode
	Events uint32
	Size   uint32
	N      uint32
	List   uint32
}

func (w *work) fetches() bool { return w.Op == verbs.OpRDMARead || w.Op == verbs.OpFetchAdd }

// end is one end of a connection: its objects, requests and counts.
type end struct {
	work
	*cm.Endpoint
	mr         *uverbs.MR
	mine, peer region
	out, in    []byte         // buffers to send from, and to receive into
	stride     int            // distance from out to in, and from in to word
	word       *atomic.Uint32 // at the client, how many the peer has received; at the server, the sum
	recvs      [batch]verbs.RecvWR
	wrs        [batch]verbs.SendWR
	wc         [batch]verbs.WC
	warm       uint32 // messages of a round before those that are measured
	before     uint32 // messages before start
	start      time.Time
	posted     uint32          // in a round
	signaled   int             // requests without their completions
	got        uint32          // messages, in a round
	small      [1]verbs.SendWR // of postWord
	smallData  [4]byte
}

// options returns the options of the connection. private returns the private data, once
// the memory exists.
func (e *end) options(private func() any) cm.Options {
	return cm.Options{
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline},
		Setup: func(ep *cm.Endpoint) error {
			if err := e.prepare(ep); err != nil {
				return err
			}
			b, err := binary.Append(nil, binary.NativeEndian, private())
			if err != nil {
				return err
			}
			return ep.Announce(b)
		},
	}
}

// prepare allocates the memory of an end, and prepares and posts its receives.
func (e *end) prepare(ep *cm.Endpoint) (err error) {
	e.Endpoint = ep
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if e.Op == verbs.OpFetchAdd {
		access |= verbs.AccessRemoteAtomic
	}
	e.stride = int(e.Size+63) &^ 63
	if e.mr, err = ep.AllocMR(2*e.stride+64, access); err != nil {
		return err
	}
	e.mine = region{Addr: e.mr.Addr(), RKey: e.mr.RKey()}
	e.out, e.in = e.mr.Bytes()[:e.Size], e.mr.Bytes()[e.stride:][:e.stride]
	e.word = e.mr.Word(2 * e.stride)
	sgl := []verbs.SGE{e.mr.SGE(e.stride, e.stride)}
	for i := range e.recvs {
		e.recvs[i].SGL = sgl
	}
	for range recvs / batch {
		if _, err := ep.QP.PostRecv(e.recvs[:]...); err != nil {
			return err
		}
	}
	return nil
}

// prepareRequests prepares the requests, now that the location of the peer's memory is known.
func (e *end) prepareRequests() {
	wr := verbs.SendWR{Opcode: e.Op, RKey: e.peer.RKey}
	stride := uint64(e.stride)
	switch {
	case e.Op == verbs.OpRDMARead:
		wr.SGL, wr.RemoteAddr = []verbs.SGE{e.mr.SGE(e.stride, int(e.Size))}, e.peer.Addr
	case e.Op == verbs.OpFetchAdd:
		wr.SGL, wr.RemoteAddr, wr.Args = []verbs.SGE{e.mr.SGE(0, int(e.Size))}, e.peer.Addr+2*stride, &verbs.SendArgs{CompareAdd: 1}
	case e.Size <= inline:
		wr.Inline, wr.RemoteAddr = e.out, e.peer.Addr+stride
	default:
		wr.SGL, wr.RemoteAddr = []verbs.SGE{e.mr.SGE(0, int(e.Size))}, e.peer.Addr+stride
	}
	for i := range e.wrs {
		e.wrs[i] = wr
	}
}

// post posts the next n messages with one call. The last of all, the last before those that are
// measured, and four of those in flight are signaled; the ID is how many have been posted including
// it.
func (e *end) post(n uint32) error {
	before := e.posted
	e.posted += n
	last := &e.wrs[n-1]
	last.ID = uint64(e.posted)
	if e.posted/period != before/period || e.posted == e.N || before < e.warm && e.posted >= e.warm || e.fetches() {
		last.Flags = verbs.SendSignaled
		e.signaled++
	}
	_, err := e.QP.PostSend(e.wrs[:n]...)
	last.Flags = 0
	return err
}

// postWord posts a SEND of a number, or with addr a WRITE.
func (e *end) postWord(word uint32, addr uint64) error {
	binary.NativeEndian.PutUint32(e.smallData[:], word)
	wr := &e.small[0]
	*wr = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: e.smallData[:]}
	if addr != 0 {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWrite, addr, e.peer.RKey
	}
	e.signaled++
	_, err := e.QP.PostSend(e.small[:]...)
	return err
}

// reap waits for completions of posted requests, at least one and at most n.
func (e *end) reap(n int, sleep bool) error {
	n, err := e.await(e.SendCQ, n, sleep)
	e.signaled -= n
	return err
}

// receive receives messages, at least one and at most n, and posts their receives again.
func (e *end) receive(n int, sleep bool) error {
	n, err := e.await(e.RecvCQ, n, sleep)
	if err != nil {
		return err
	}
	e.got += uint32(n)
	_, err = e.QP.PostRecv(e.recvs[:n]...)
	return err
}

// tell tells the peer whether a round follows, and waits until all requests have completed.
func (e *end) tell(more uint32) error {
	err := e.postWord(more, 0)
	for err == nil && e.signaled > 0 {
		err = e.reap(batch, e.Events != 0)
	}
	return err
}

// hear waits until the peer has told whether a round follows, and prepares for it.
func (e *end) hear() (more uint32, err error) {
	err = e.receive(1, true)
	more = binary.NativeEndian.Uint32(e.in)
	e.posted, e.before, e.got = 0, 0, 0
	e.in[e.Size-1] = 0
	e.word.Store(0)
	return more, err
}

// poll polls up to n completions into e.wc.
func (e *end) poll(cq *uverbs.CQ, n int) (int, error) { return e.check(cq.Poll(e.wc[:n])) }

// check fails if one of the first n completions of e.wc did.
func (e *end) check(n int) (int, error) {
	for i := range e.wc[:n] {
		if err := e.wc[i].Err(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// await waits for completions, at least one and at most n.
func (e *end) await(cq *uverbs.CQ, n int, sleep bool) (int, error) {
	if sleep && e.Events == pollWait {
		n, err := cq.PollWait(context.Background(), e.wc[:n])
		if err != nil {
			return 0, err
		}
		return e.check(n)
	}
	for armed := false; ; {
		got, err := e.poll(cq, n)
		switch {
		case got > 0 || err != nil:
			return got, err
		case !sleep:
		case !armed:
			if err := cq.Arm(false); err != nil {
				return 0, err
			}
			armed = true
		default:
			if err := cq.Wait(context.Background()); err != nil {
				return 0, err
			}
			armed = false
		}
	}
}
