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

// conn is a connection of a client or a server: its objects, requests and counts.
type conn struct {
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
func (c *conn) options(private func() any) cm.Options {
	return cm.Options{
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: recvs, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: inline},
		Setup: func(ep *cm.Endpoint) error {
			if err := c.prepare(ep); err != nil {
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

// prepare allocates the memory of a connection, and prepares and posts its receives.
func (c *conn) prepare(ep *cm.Endpoint) (err error) {
	c.Endpoint = ep
	access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if c.Op == verbs.OpFetchAdd {
		access |= verbs.AccessRemoteAtomic
	}
	c.stride = int(c.Size+63) &^ 63
	if c.mr, err = ep.AllocMR(2*c.stride+64, access); err != nil {
		return err
	}
	c.mine = region{Addr: c.mr.Addr(), RKey: c.mr.RKey()}
	c.out, c.in = c.mr.Bytes()[:c.Size], c.mr.Bytes()[c.stride:][:c.stride]
	c.word = c.mr.Word(2 * c.stride)
	sgl := []verbs.SGE{c.mr.SGE(c.stride, c.stride)}
	for i := range c.recvs {
		c.recvs[i].SGL = sgl
	}
	for range recvs / batch {
		if _, err := ep.QP.PostRecv(c.recvs[:]...); err != nil {
			return err
		}
	}
	return nil
}

// prepareRequests prepares the requests, now that the location of the peer's memory is known.
func (c *conn) prepareRequests() {
	wr := verbs.SendWR{Opcode: c.Op, RKey: c.peer.RKey}
	stride := uint64(c.stride)
	switch {
	case c.Op == verbs.OpRDMARead:
		wr.SGL, wr.RemoteAddr = []verbs.SGE{c.mr.SGE(c.stride, int(c.Size))}, c.peer.Addr
	case c.Op == verbs.OpFetchAdd:
		wr.SGL, wr.RemoteAddr, wr.Args = []verbs.SGE{c.mr.SGE(0, int(c.Size))}, c.peer.Addr+2*stride, &verbs.SendArgs{CompareAdd: 1}
	case c.Size <= inline:
		wr.Inline, wr.RemoteAddr = c.out, c.peer.Addr+stride
	default:
		wr.SGL, wr.RemoteAddr = []verbs.SGE{c.mr.SGE(0, int(c.Size))}, c.peer.Addr+stride
	}
	for i := range c.wrs {
		c.wrs[i] = wr
	}
}

// post posts the next n messages with one call. The last of all, the last before those that are
// measured, and four of those in flight are signaled; the ID is how many have been posted including
// it.
func (c *conn) post(n uint32) error {
	before := c.posted
	c.posted += n
	last := &c.wrs[n-1]
	last.ID = uint64(c.posted)
	if c.posted/period != before/period || c.posted == c.N || before < c.warm && c.posted >= c.warm || c.fetches() {
		last.Flags = verbs.SendSignaled
		c.signaled++
	}
	_, err := c.QP.PostSend(c.wrs[:n]...)
	last.Flags = 0
	return err
}

// postWord posts a SEND of a number, or with addr a WRITE.
func (c *conn) postWord(word uint32, addr uint64) error {
	binary.NativeEndian.PutUint32(c.smallData[:], word)
	wr := &c.small[0]
	*wr = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: c.smallData[:]}
	if addr != 0 {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWrite, addr, c.peer.RKey
	}
	c.signaled++
	_, err := c.QP.PostSend(c.small[:]...)
	return err
}

// reap waits for completions of posted requests, at least one and at most n.
func (c *conn) reap(n int, sleep bool) error {
	n, err := c.await(c.SendCQ, n, sleep)
	c.signaled -= n
	return err
}

// receive receives messages, at least one and at most n, and posts their receives again.
func (c *conn) receive(n int, sleep bool) error {
	n, err := c.await(c.RecvCQ, n, sleep)
	if err != nil {
		return err
	}
	c.got += uint32(n)
	_, err = c.QP.PostRecv(c.recvs[:n]...)
	return err
}

// tell tells the peer whether a round follows, and waits until all requests have completed.
func (c *conn) tell(more uint32) error {
	err := c.postWord(more, 0)
	for err == nil && c.signaled > 0 {
		err = c.reap(batch, c.Events != 0)
	}
	return err
}

// hear waits until the peer has told whether a round follows, and prepares for it.
func (c *conn) hear() (more uint32, err error) {
	err = c.receive(1, true)
	more = binary.NativeEndian.Uint32(c.in)
	c.posted, c.before, c.got = 0, 0, 0
	c.in[c.Size-1] = 0
	c.word.Store(0)
	return more, err
}

// poll polls up to n completions into c.wc.
func (c *conn) poll(cq *uverbs.CQ, n int) (int, error) { return c.check(cq.Poll(c.wc[:n])) }

// check fails if one of the first n completions of c.wc did.
func (c *conn) check(n int) (int, error) {
	for i := range c.wc[:n] {
		if err := c.wc[i].Err(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// await waits for completions, at least one and at most n.
func (c *conn) await(cq *uverbs.CQ, n int, sleep bool) (int, error) {
	if sleep && c.Events == pollWait {
		n, err := cq.PollWait(context.Background(), c.wc[:n])
		if err != nil {
			return 0, err
		}
		return c.check(n)
	}
	for armed := false; ; {
		got, err := c.poll(cq, n)
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
