package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
	"github.com/goverbs/verbs/uverbs"
)

// lossAfter is the time after which a datagram or its answer is taken for lost.
const lossAfter = 500 * time.Millisecond

// lat exchanges one message at a time, or answers them.
type lat struct {
	*session
	q        *queue
	wcs      [16]verbs.WC
	wr       []verbs.SendWR // one
	word     lastByte       // of the received data
	lastSent *byte          // the last byte of the sent data
	half     int            // half of the send queue
	length   int            // of a message, with the GRH of a datagram
}

func newLat(s *session) *lat {
	q := s.queues[0]
	t := &lat{session: s, q: q, wr: q.batch[:1], half: max(s.TxDepth/2, 1), length: s.layout().head + s.Size}
	t.lastSent = &t.out()[s.Size-1]
	t.word = newLastByte(s.mr, s.layout().inOf(0)+s.Size-1)
	return t
}

// ping is the part of a client: it times each message with its answer, or each request that needs
// no answer.
func (t *lat) ping() (took time.Duration, hist *latency.Histogram, err error) {
	hist = latency.New()
	times := make([]time.Duration, 0, 4096) // added to the histogram between messages
	record := func() {
		for _, d := range times {
			hist.Record(d / t.ways())
		}
		times = times[:0]
	}
	start := time.Now()
	last := took // since the start
	for n := uint64(0); t.Duration > 0 && last < t.Duration || n < uint64(t.Iters); n++ {
		if err := t.post(n); err != nil {
			return 0, nil, fmt.Errorf("post %s: %w", t.Op, err)
		}
		t.count.Store(n)
		received, err := t.wait(n)
		if err != nil {
			return 0, nil, fmt.Errorf("%s %d: %w", t.Op, n, err)
		}
		took = time.Since(start)
		if received { // else a datagram was lost
			times = append(times, took-last)
		}
		last = took
		if len(times) == cap(times) {
			record()
			last = time.Since(start)
		}
	}
	record()
	return took, hist, t.ctl.send(message{Done: &done{t.q.posted}})
}

// answer is the part of a server: it answers until the client is done.
func (t *lat) answer() error {
	if err := t.ctl.send(message{Done: &done{}}); err != nil {
		return err
	}
	for n := uint64(0); ; n++ {
		_, err := t.wait(n)
		if errors.Is(err, errPeerDone) {
			return nil
		}
		if err == nil {
			err = t.post(n)
		}
		if err != nil {
			return fmt.Errorf("answer %d: %w", n, err)
		}
		t.count.Store(n + 1)
	}
}

// post sends message n. It signals one message per half of the send queue, whose completion
// frees that half.
func (t *lat) post(n uint64) error {
	wr := &t.wr[0]
	wr.Flags = 0
	if t.q.unsignaled++; t.op.fetches || t.q.unsignaled == t.half {
		wr.Flags = verbs.SendSignaled
		t.q.unsignaled = 0
	}
	switch t.op.opcode {
	case verbs.OpRDMAWrite:
		*t.lastSent = seqByte(n)
	case verbs.OpCompareSwap:
		wr.Args.CompareAdd, wr.Args.Swap = n, n+1
	case verbs.OpSendImm:
		if t.client {
			wr.Imm = uint32(n)
		}
	}
	if !t.op.fetches && t.q.posted >= t.q.completed+uint64(t.TxDepth) {
		if _, err := t.await(t.opt.SendCQ, t.wcs[:1], time.Time{}); err != nil {
			return err
		}
		t.q.completed += uint64(t.half)
	}
	_, err := t.q.qp.PostSend(t.wr...)
	t.q.posted++
	if err == nil && t.q.spare > 0 {
		_, err = t.q.qp.PostRecv(t.q.recvs[:t.q.spare]...)
		t.q.spare = 0
	}
	return err
}

// wait waits for message n of the peer, or for the completion of a request that needs no
// answer. received is false if a datagram was lost.
func (t *lat) wait(n uint64) (received bool, err error) {
	switch {
	case t.op.fetches:
		_, err := t.await(t.opt.SendCQ, t.wcs[:1], time.Time{})
		return true, err
	case !t.op.receives:
		return true, t.waitByte(seqByte(n))
	}
	var until time.Time
	if t.op.datagram && t.client {
		until = time.Now().Add(lossAfter)
	}
	for {
		wc, err := t.receive(until)
		if wc == nil || err != nil {
			return false, err
		}
		switch {
		case !t.op.datagram, t.client && wc.Imm() == uint32(n):
			return true, nil
		case !t.client: // the answer has the number of the request
			t.wr[0].Imm = wc.Imm()
			return true, nil
		} // otherwise it is late
	}
}

// receive receives a message, if one arrives in time. post posts the receive again, while the
// next message is in flight.
func (t *lat) receive(until time.Time) (*verbs.WC, error) {
	n, err := t.await(t.opt.RecvCQ, t.wcs[:1], until)
	if n == 0 || err != nil {
		return nil, err
	}
	wc := &t.wcs[0]
	if int(wc.ByteLen) != t.length {
		return nil, fmt.Errorf("message of %d bytes, not %d: %w", wc.ByteLen, t.length, cli.ErrProtocol)
	}
	t.q.received++
	t.q.spare++
	return wc, nil
}

// waitByte polls memory until the last byte of the received data is want.
func (t *lat) waitByte(want byte) error {
	for i := 0; t.word.load() != want; i++ {
		if i%256 != 255 {
			continue
		}
		// Only a completion reports that a write failed. The call also lets the
		// goroutine be preempted without a signal.
		if n := t.opt.SendCQ.Poll(t.wcs[:1]); n > 0 {
			if err := t.wcs[0].Err(); err != nil {
				return err
			}
			t.q.completed += uint64(t.half)
		}
		if err := t.checkEnd(); err != nil {
			return err
		}
	}
	t.q.received++
	return nil
}

// seqByte returns the last byte of message n. It differs from that of message n-1, and for the
// first message from the initial byte.
func seqByte(n uint64) byte { return byte(n + 1) }

// lastByte is a byte of a region that a peer writes to.
type lastByte struct {
	word  *atomic.Uint32
	shift int
}

func newLastByte(mr *uverbs.MR, off int) lastByte {
	var one [4]byte
	one[off&3] = 1
	return lastByte{mr.Word(off &^ 3), bits.TrailingZeros32(binary.NativeEndian.Uint32(one[:]))}
}

func (b lastByte) load() byte { return byte(b.word.Load() >> b.shift) }
