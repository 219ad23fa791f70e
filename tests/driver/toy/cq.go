package toy

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

const cqeOwner = 28 // offset of the owner in ToyCqe

// completionQueue is a CQ. The owner of each element changes with each round, and shows who owns it.
type completionQueue struct {
	provider.Completions
	ring[ToyCqe]
	card   *card
	num    uint32
	next   uint32 // index of the next completion
	record []byte
	taken  *atomic.Uint64 // the record
	free   func()
}

// CreateCQ implements [provider.Context].
func (c *card) CreateCQ(init *provider.CQInit, create func(provider.UHW) (provider.CQInfo, error)) (provider.CompletionQueue, error) {
	if init.Depth > c.dev.Attr.MaxCQE { // uverbs explains it
		return nil, syscall.EINVAL
	}
	init.Depth = provider.RoundUp(init.Depth)
	q := &completionQueue{card: c}
	q.SingleThreaded = init.SingleThreaded
	var err error
	if q.ring, err = newRing[ToyCqe](init.Depth); err != nil {
		return nil, err
	}
	q.free = func() {
		q.buf.Close()
		c.records.Put(q.record)
	}
	if q.record, err = c.records.Get(); err != nil {
		q.free()
		return nil, err
	}
	q.taken = mmap.Word64(q.record, 0)
	var resp ToyCreateCqResp
	req := ToyCreateCq{BufAddr: q.buf.Addr(), DbAddr: mmap.Addr(q.record)}
	if _, err := create(provider.UHW{In: mmap.Bytes(&req), Out: mmap.Bytes(&resp), Pins: q.pins()}); err != nil {
		q.free()
		return nil, err
	}
	q.num = resp.Cqn
	q.look()
	return q, nil
}

// owner returns the owner of completion i once it has been written.
func (q *completionQueue) owner(i uint32) uint32 {
	if i&(q.mask+1) == 0 {
		return 1
	}
	return 0
}

// word returns the word with the owner of completion i.
func (q *completionQueue) word(i uint32) *atomic.Uint32 {
	return mmap.Word(mmap.Bytes(q.at(i)), cqeOwner)
}

// written reports whether completion i has been written.
func (q *completionQueue) written(i uint32) bool { return q.word(i).Load() == q.owner(i) }

// look tells where the next completion will be seen, and the card how many have been taken.
func (q *completionQueue) look() {
	q.Word, q.Mask, q.None = q.word(q.next), 1, 1-q.owner(q.next)
	q.taken.Store(uint64(q.next))
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) (n int) {
	if q.SingleThreaded {
		q.Taker.Lock()
	}
	qps := *q.card.qps.Load()
	for n < len(wcs) && q.written(q.next) {
		mmap.BarrierFromDevice() // the rest is read after the owner
		e := q.at(q.next)
		if p := qps[e.Qpn]; p != nil && q.decode(e, p, &wcs[n]) {
			n++
		}
		q.next++
	}
	q.look()
	q.Allow()
	return n
}

var opcodes = [...]verbs.WCOpcode{TOY_SEND: verbs.WCSend, TOY_WRITE: verbs.WCRDMAWrite, TOY_READ: verbs.WCRDMARead, TOY_RECV: verbs.WCRecv}

// decode decodes a completion of a QP, and reports whether it completes a request in flight: the card may
// be faulty.
func (q *completionQueue) decode(e *ToyCqe, p *queuePair, wc *verbs.WC) (ok bool) {
	*wc = verbs.WC{Status: verbs.WCStatus(e.Status), QPNum: p.num, ByteLen: e.Length}
	if int(e.Opcode) < len(opcodes) {
		wc.Opcode = opcodes[e.Opcode]
	}
	if e.Flags&TOY_IMM != 0 {
		provider.SetImm(wc, e.Imm)
	}
	switch {
	case e.Opcode == TOY_RECV && p.recvCQ == q:
		wc.ID, ok = p.recv.complete(e.Index)
	case e.Opcode != TOY_RECV && p.sendCQ == q:
		wc.ID, ok = p.send.complete(e.Index)
	}
	return ok
}

// drop makes Take skip the completions of a QP: no QP has number 0.
func (q *completionQueue) drop(num uint32) {
	q.Exclude()
	defer q.Allow()
	for i := q.next; i-q.next <= q.mask && q.written(i); i++ {
		mmap.BarrierFromDevice()
		if e := q.at(i); e.Qpn == num {
			e.Qpn = 0
		}
	}
}

// Arm implements [provider.CompletionQueue].
func (q *completionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	v := uint64(q.num)<<32 | uint64(q.next)
	if solicitedOnly {
		v |= TOY_ARM_SOLICITED
	}
	mmap.StoreDevice(q.card.register(TOY_DB_ARM), v)
	return nil
}

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int { return int(q.mask) + 1 }

// Resize implements [provider.Resizer]: the kernel refuses.
func (q *completionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	return resize(size, provider.UHW{})
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	r := &completionQueue{ring: q.ring, card: q.card, num: q.num, next: q.next, record: q.record, taken: q.taken, free: q.free}
	r.SingleThreaded = q.SingleThreaded
	if err := q.Err(); errors.Is(err, verbs.ErrQueueFailed) { // of a lost device
		r.Fail(err)
	}
	for r.written(r.next) {
		r.next++
	}
	r.look()
	return r
}

// Release implements [provider.Queue].
func (q *completionQueue) Release() {
	q.Stop(true)
	q.free()
}
