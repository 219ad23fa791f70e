package perf

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
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

// The ID of a send holds the number of its queue, and above it how many messages
// the queue has posted including this one; the ID of a credit has creditID set.
const (
	queueBits = 16
	creditID  = 1 << 63
)

func newBW(s *session) *bw {
	b := &bw{session: s, length: s.layout().head + s.Size, sender: s.sends(), sending: s.sends()}
	if s.credits() {
		b.credited = s.quantum()
	}
	for _, q := range s.queues {
		q.target = uint64(s.Iters)
		if s.Duration > 0 {
			q.target = 1 << 46
		}
	}
	return b
}

// run returns when all messages have been sent, and all of the peer's received.
func (b *bw) run() (time.Duration, error) {
	b.start = time.Now()
	if b.Duration > 0 {
		defer time.AfterFunc(b.Duration, func() { b.expired.Store(true) }).Stop()
	}
	if !b.sending {
		if err := b.finish(); err != nil {
			return 0, err
		}
	}
	err := b.loop()
	return b.took, err
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
		for _, q := range b.queues {
			q.target = q.posted
			if q.unsignaled > 0 {
				q.target++ // one more, to learn when those before it have completed
			}
		}
	}
	for _, q := range b.queues {
		posted, err := b.postQueue(q)
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
		q := b.queues[wc.ID&(1<<queueBits-1)]
		if wc.ID&creditID != 0 {
			q.credits--
			continue
		}
		completed += wc.ID>>queueBits - q.completed
		q.completed = wc.ID >> queueBits
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
		q := b.queues[wc.ID]
		q.spare++
		if wc.ByteLen == 0 && wc.Opcode == verbs.WCRecv {
			q.room += uint64(b.credited)
			continue
		}
		if int(wc.ByteLen) != b.length {
			return fmt.Errorf("message of %d bytes, not %d: %w", wc.ByteLen, b.length, cli.ErrProtocol)
		}
		q.received++
		q.owed++
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

// postQueue posts receives again, then credits, and then messages.
func (b *bw) postQueue(q *queue) (busy bool, err error) {
	if q.spare > 0 {
		if _, err := q.qp.PostRecv(q.recvs[:q.spare]...); err != nil {
			return false, err
		}
		q.spare = 0
	}
	for b.credited > 0 && q.owed >= b.credited && q.credits < creditSends {
		if _, err := q.qp.PostSend(q.credit[:]...); err != nil {
			return false, err
		}
		q.owed -= b.credited
		q.credits++
		busy = true
	}
	for b.sending {
		n := min(uint64(b.List), q.target-q.posted)
		if n == 0 || q.posted+n-q.completed > uint64(b.TxDepth) || q.posted+n > q.room {
			break
		}
		if err := b.post(q, int(n)); err != nil {
			return false, err
		}
		busy = true
	}
	return busy, nil
}

// post posts the next n messages of a queue. The last is signaled if another batch
// would exceed cq-mod unsignaled messages, or if it is the last of all.
func (b *bw) post(q *queue, n int) error {
	batch := q.batch[:n]
	last := &batch[n-1]
	q.unsignaled += n
	last.ID = (q.posted+uint64(n))<<queueBits | q.number
	last.Flags = 0
	if q.unsignaled+b.List > b.CQMod || q.posted+uint64(n) == q.target {
		last.Flags = verbs.SendSignaled
		q.unsignaled = 0
	}
	if b.op.opcode == verbs.OpCompareSwap { // each finds the value that the last one stored
		for i := range batch {
			value := q.posted + uint64(i)
			batch[i].Args.CompareAdd, batch[i].Args.Swap = value, value+1
		}
	}
	_, err := q.qp.PostSend(batch...)
	q.posted += uint64(n)
	return err
}

func (b *bw) allSent() bool {
	for _, q := range b.queues {
		if q.posted < q.target || q.completed < q.posted {
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
