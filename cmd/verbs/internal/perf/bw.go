package perf

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// bw sends as fast as the queues accept requests, or receives, or both.
type bw struct {
	*session
	wcs      [64]verbs.WC
	length   int  // of a message, with the GRH of a datagram
	armed    bool // both CQs
	sender   bool // this side sends
	sending  bool // messages are left to send
	credited int  // messages per credit; 0 without credits
	start    time.Time
	expired  atomic.Bool // the duration has passed, if there is one
	took     time.Duration
}

// The ID of a send holds the number of its lane, and above it how many messages
// the lane has posted including this one; the ID of a credit has creditID set.
const (
	laneBits = 16
	creditID = 1 << 63
)

func newBW(s *session) *bw {
	b := &bw{session: s, length: s.layout().head + s.Size, sender: s.sends(), sending: s.sends()}
	if s.credits() {
		b.credited = s.quantum()
	}
	for _, l := range s.lanes {
		l.target = uint64(s.Iters)
		if s.Duration > 0 {
			l.target = 1 << 46
		}
	}
	return b
}

// run returns when all messages have been sent, and all of the peer's received.
func (b *bw) run() (time.Duration, *latency.Histogram, error) {
	b.start = time.Now()
	if b.Duration > 0 {
		defer time.AfterFunc(b.Duration, func() { b.expired.Store(true) }).Stop()
	}
	if !b.sending {
		if err := b.finish(); err != nil {
			return 0, nil, err
		}
	}
	err := b.loop()
	return b.took, nil, err
}

func (b *bw) loop() error {
	lossy := time.Time{} // when missing datagrams are taken for lost
	for {
		busy, err := b.step()
		if err != nil {
			return err
		}
		if b.sending && b.allSent() {
			b.sending = false
			if err := b.finish(); err != nil {
				return err
			}
		}
		if busy {
			lossy = time.Time{}
			continue
		}
		if !b.sending {
			if !b.receives() {
				// This side cannot see the progress of the peer.
				b.waiting.Store(true)
				slow := time.AfterFunc(b.Timeout+10*b.took, func() {
					b.fail(fmt.Errorf("the peer is not done, %v after this side", b.Timeout+10*b.took))
				})
				defer slow.Stop()
				return b.waitDone()
			}
			if b.peerDone.Load() {
				switch {
				case b.received() >= b.sent:
					return nil
				case !b.op.datagram:
				case lossy.IsZero():
					lossy = time.Now().Add(300 * time.Millisecond)
				case time.Now().After(lossy):
					return nil
				}
			}
		}
		if b.failed.Load() {
			return context.Cause(b.ctx)
		}
		if err := b.idle(&b.armed, lossy, b.opt.SendCQ, b.opt.RecvCQ); err != nil {
			return err
		}
	}
}

// step polls completions and posts what may be posted.
func (b *bw) step() (busy bool, err error) {
	n := b.opt.SendCQ.Poll(b.wcs[:])
	if err := b.takeSends(b.wcs[:n]); err != nil {
		return false, fmt.Errorf("%s: %w", b.Op, err)
	}
	busy = n > 0
	if b.op.receives {
		n = b.opt.RecvCQ.Poll(b.wcs[:])
		if err := b.takeRecvs(b.wcs[:n]); err != nil {
			return false, fmt.Errorf("receive: %w", err)
		}
		busy = busy || n > 0
	}
	if b.sending && b.expired.Load() {
		b.expired.Store(false)
		for _, l := range b.lanes {
			l.target = l.posted
			if l.unsignaled > 0 {
				l.target++ // one more, to learn when those before it have completed
			}
		}
	}
	for _, l := range b.lanes {
		posted, err := b.postLane(l)
		if err != nil {
			return false, fmt.Errorf("post %s: %w", b.Op, err)
		}
		busy = busy || posted
	}
	return busy, nil
}

func (b *bw) takeSends(wcs []verbs.WC) error {
	var completed uint64
	for i := range wcs {
		wc := &wcs[i]
		if err := wc.Err(); err != nil {
			return err
		}
		l := b.lanes[wc.ID&(1<<laneBits-1)]
		if wc.ID&creditID != 0 {
			l.credits--
			continue
		}
		completed += wc.ID>>laneBits - l.completed
		l.completed = wc.ID >> laneBits
	}
	if completed > 0 {
		b.count.Add(completed)
	}
	return nil
}

// takeRecvs counts messages and credits, and marks their receives to be posted again.
// An empty message is a credit.
func (b *bw) takeRecvs(wcs []verbs.WC) error {
	var received uint64
	for i := range wcs {
		wc := &wcs[i]
		if err := wc.Err(); err != nil {
			return err
		}
		l := b.lanes[wc.ID]
		l.spare++
		if wc.ByteLen == 0 && wc.Opcode == verbs.WCRecv {
			l.room += uint64(b.credited)
			continue
		}
		if int(wc.ByteLen) != b.length {
			return fmt.Errorf("message of %d bytes, not %d: %w", wc.ByteLen, b.length, cli.ErrProtocol)
		}
		l.received++
		l.owed++
		received++
	}
	switch {
	case received == 0:
	case b.sender:
		b.recvCount.Add(received)
	default:
		b.count.Add(received)
	}
	return nil
}

// postLane posts receives again, then credits, and then messages.
func (b *bw) postLane(l *lane) (busy bool, err error) {
	if l.spare > 0 {
		if _, err := l.qp.PostRecv(l.recvs[:l.spare]...); err != nil {
			return false, err
		}
		l.spare = 0
	}
	for b.credited > 0 && l.owed >= b.credited && l.credits < creditSends {
		if _, err := l.qp.PostSend(l.credit[:]...); err != nil {
			return false, err
		}
		l.owed -= b.credited
		l.credits++
		busy = true
	}
	for b.sending {
		n := min(uint64(b.List), l.target-l.posted)
		if n == 0 || l.posted+n-l.completed > uint64(b.TxDepth) || l.posted+n > l.room {
			break
		}
		if err := b.post(l, int(n)); err != nil {
			return false, err
		}
		busy = true
	}
	return busy, nil
}

// post posts the next n messages of a lane. The last is signaled if another batch
// would exceed cq-mod unsignaled messages, or if it is the last of all.
func (b *bw) post(l *lane, n int) error {
	batch := l.batch[:n]
	last := &batch[n-1]
	l.unsignaled += n
	last.ID = (l.posted+uint64(n))<<laneBits | l.number
	last.Flags = 0
	if l.unsignaled+b.List > b.CQMod || l.posted+uint64(n) == l.target {
		last.Flags = verbs.SendSignaled
		l.unsignaled = 0
	}
	if b.op.opcode == verbs.OpCompareSwap { // each finds the value that the last one stored
		for i := range batch {
			value := l.posted + uint64(i)
			batch[i].Args.CompareAdd, batch[i].Args.Swap = value, value+1
		}
	}
	_, err := l.qp.PostSend(batch...)
	l.posted += uint64(n)
	return err
}

func (b *bw) allSent() bool {
	for _, l := range b.lanes {
		if l.posted < l.target || l.completed < l.posted {
			return false
		}
	}
	return true
}

// finish reports to the peer that no more messages follow.
func (b *bw) finish() error {
	b.took = time.Since(b.start)
	return b.ctl.send(message{Done: &done{b.posted()}})
}

func (s *session) posted() (n uint64) {
	for _, l := range s.lanes {
		n += l.posted
	}
	return n
}

func (s *session) received() (n uint64) {
	for _, l := range s.lanes {
		n += l.received
	}
	return n
}
