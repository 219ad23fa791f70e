package siw

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/provider"
)

// sendQueue is the send queue of a QP.
type sendQueue struct {
	provider.Sends
	queue             array[abi.SiwSqe]
	doorbell          provider.Doorbell
	query             provider.StateQuery
	dev               *provider.Device
	handle            uint32
	cq                *completionQueue
	put               uint32
	begun             bool          // a request has been posted
	taken             uint32        // the kernel has taken the requests before this place
	flags             uint16        // of each request
	maxSimple         uint32        // messages of at least minSimple bytes, and less than as many more, are simple
	size              uint32        // how many elements are used; see withSpare
	recv              *recvQueue    // of the same QP; nil if that uses an SRQ
	holdUntil         time.Time     // end of Hold; see there
	nudgeTimer        *time.Timer   // calls nudge
	nudgeDelay        time.Duration // before the next call
	nudgePending      bool          // nudge will be called
	nudged            uint32        // the place of its last WRITE
	disableLocksLater bool          // disable the locks when nudge is done
}

// newSendQueue takes over the mapped array.
func newSendQueue(a array[abi.SiwSqe], size int, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) (*sendQueue, error) {
	cq, _ := init.SendCQ.(*completionQueue)
	q := &sendQueue{
		disableLocksLater: init.SingleThreaded, queue: a, size: min(uint32(size), a.mask+1), dev: dev, handle: info.Handle, cq: cq,
		query: provider.NewStateQuery(dev, info.Handle),
	}
	q.InitSends(dev, init, info)
	q.SingleThreaded, q.MaxSGE, q.MaxInline = false, min(q.MaxSGE, abi.SIW_MAX_SGE), min(q.MaxInline, maxInline)
	if q.flags = abi.SIW_WQE_VALID; q.SignalAll {
		q.flags |= abi.SIW_WQE_SIGNALLED
	}
	if q.MaxSGE > 0 {
		q.maxSimple = uint32(max(q.MaxMessage+1, minSimple) - minSimple)
	}
	var err error
	q.doorbell, err = provider.NewDoorbell(dev, info.Handle, true)
	if err != nil {
		q.Release()
		return nil, err
	}
	return q, nil
}

// maxInline is the room for inline data: all SGEs but the first.
const maxInline = int((abi.SIW_MAX_SGE - 1) * unsafe.Sizeof(abi.SiwSge{}))

// Hold implements [provider.Holder].
func (q *sendQueue) Hold(t time.Time) {
	q.Lock()
	q.holdUntil = t
	q.Unlock()
}

// Post implements [provider.SendQueue]. Simple requests, which are the most frequent, are written
// without a call.
func (q *sendQueue) Post(wrs []verbs.SendWR) (n int, err error) {
	q.Lock() // a deferred call would take longer; only CopyInline can panic
	room, queue, put := 0, q.queue.slots, q.put
	if q.begun && q.State != verbs.StateErr && !q.Closed {
		room = q.room(len(wrs))
	}
	var first uint32 // the word that publishes the batch
	for ; n < room; n++ {
		wr := &wrs[n]
		op := simpleOps[min(int(wr.Opcode), len(simpleOps)-1)]
		if op == 0 || wr.Flags&verbs.SendFence != 0 || len(wr.Inline) != 0 || len(wr.SGL) != 1 || wr.Args != nil {
			break
		}
		sge := &wr.SGL[0]
		if sge.Length-minSimple >= q.maxSimple {
			break
		}
		sqe := queue.at(put + uint32(n))
		sqe.Id, sqe.Rkey, *sqe.Raddr() = wr.ID, wr.RKey, wr.RemoteAddr // a SEND ignores the latter
		copySGE(&sqe.Sge()[0], sge)
		v := word(q.flags|kernelFlags(wr.Flags), 1, op-1)
		if n == 0 {
			first = v
		} else {
			fillSqe(sqe, v)
		}
	}
	switch {
	case n == len(wrs) && n > 0:
		if n, err = q.submit(n, first); err != nil {
			err = q.Refused(n, wrs[n].ID, err)
		}
	case q.begun:
		n, err = q.postRest(wrs, n, first)
	default:
		n, err = q.postFirst(wrs)
	}
	disable := q.disableLocksLater && !q.nudgePending && q.begun
	q.Unlock()
	if disable {
		q.disableLocks()
	}
	return n, err
}

// postFirst posts to a queue that has had no requests. Over iWARP the side that accepts must not
// send before it has received: the dialing side is the first to send (RFC 5044, 7.1.2), and a siw
// that dials takes whatever comes right behind MPA's reply for a violation (siw_recv_mpa_rr). RDMA
// programs do not know this rule, so this package obeys it for them: package cm sets the time until
// which to hold, and the peer's first message ends the wait.
func (q *sendQueue) postFirst(wrs []verbs.SendWR) (int, error) {
	for time.Now().Before(q.holdUntil) && q.recv != nil && !q.recv.hasReceived() {
		time.Sleep(20 * time.Microsecond)
	}
	n, err := q.postRest(wrs, 0, 0)
	// The dialing side's first message, or this one if the peer has sent nothing, may stay unread:
	// see nudge.
	q.begun = q.put != 0
	if q.begun && (q.recv == nil || !q.recv.hasReceived()) {
		q.nudgeDelay, q.nudgePending = time.Millisecond, true
		q.nudgeTimer = time.AfterFunc(q.nudgeDelay, q.nudge)
	}
	return n, err
}

// disableLocks disables the locks of the queues of a single-threaded QP. The caller is
// the only one, holds no lock, and knows that nudge will not be called again.
func (q *sendQueue) disableLocks() {
	q.disableLocksLater, q.SingleThreaded = false, true
	if q.recv != nil {
		q.recv.SingleThreaded = true
	}
}

// nudgeID is the ID of nudge's requests, which callers can only guess.
var nudgeID = rand.Uint64()

// nudge sends the peer an empty WRITE, repeatedly until a message has come: a siw that accepts may
// leave the first message unread until more data comes (see docs/kernels.md). A WRITE of nothing
// touches no memory and takes no receive, so the peer's program does not see it (RFC 6581 lets it
// be the first message for the same reason). It is not signaled; if it fails, its completion is
// dropped. Callers lose no element to it; see nudgeQueued.
func (q *sendQueue) nudge() {
	q.Lock()
	defer q.Unlock()
	q.nudgePending = false
	if q.Closed || q.State == verbs.StateErr || q.recv != nil && q.recv.hasReceived() {
		return
	}
	sqe := q.queue.at(q.put)
	if !isValid(sqeWord(sqe).Load() | sqeWord(q.queue.at(q.put-1)).Load()) { // otherwise more is queued
		q.nudged = q.put
		sqe.Id, sqe.Rkey, *sqe.Raddr() = nudgeID, 0, 0
		if _, err := q.submit(1, word(abi.SIW_WQE_VALID, 0, abi.SIW_OP_WRITE)); err != nil {
			return
		}
	}
	if q.nudgeDelay *= 4; q.nudgeDelay < 10*time.Second {
		q.nudgePending = true
		q.nudgeTimer.Reset(q.nudgeDelay)
	}
}

// postRest posts requests of which the first n have been written, and first is the word of the
// first.
func (q *sendQueue) postRest(wrs []verbs.SendWR, n int, first uint32) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	// The kernel refuses doorbells for a QP in the error state, and completes nothing that is
	// posted to it (siw_post_send). Verbs promise a flushed completion for each request, so this
	// package makes them.
	if q.State == verbs.StateErr {
		for i := range wrs {
			if !q.cq.flushPosted(&q.Requests, q.size, wrs[i].ID, 0) {
				return i, verbs.ErrQueueFull
			}
		}
		return len(wrs), nil
	}
	// Only the kernel knows whether the QP accepts requests yet: the connection manager
	// moves it to RTS.
	room := q.room(len(wrs))
	// CopyInline may panic: until all are written, no element is valid.
	q.setValid(n, false)
	var err error
	for ; n < len(wrs); n++ {
		if n == room {
			err = verbs.ErrQueueFull
			break
		}
		sqe := q.queue.at(q.put + uint32(n))
		var v uint32
		if v, err = q.encode(sqe, &wrs[n], n > 0); err != nil {
			break
		}
		if n == 0 {
			first = v
		} else {
			fillSqe(sqe, v&^validWord())
		}
	}
	if n > 0 {
		q.setValid(n, true)
		posted, serr := q.submit(n, first)
		if serr != nil {
			return posted, q.Refused(posted, wrs[posted].ID, serr)
		}
	}
	if n < len(wrs) {
		err = q.Refused(n, wrs[n].ID, err)
	}
	return n, err
}

// setValid makes the elements from the second to the n-th at put valid, or not.
func (q *sendQueue) setValid(n int, valid bool) {
	for i := 1; i < n; i++ {
		sqe := q.queue.at(q.put + uint32(i))
		w := sqeWord(sqe).Load() &^ validWord()
		if valid {
			w |= validWord()
		}
		fillSqe(sqe, w)
	}
}

// room returns how many of n requests fit.
func (q *sendQueue) room(n int) int {
	if n > int(q.size)-int(q.put-q.taken) {
		n = q.freeSlots(n)
	}
	return n
}

// freeSlots returns how many of n requests fit, if taken does not tell: it looks at elements that
// far ahead, which may not be in the cache. The kernel takes requests in order.
func (q *sendQueue) freeSlots(n int) int {
	size := q.size
	n = min(n, int(size))
	if !isValid(sqeWord(q.queue.at(q.put - 1)).Load()) {
		q.taken = q.put
		return n
	}
	for n > 0 && q.inUse(n, size) {
		if size == q.size && q.nudgeQueued() {
			size++
		} else if q.inUse(n, size) { // the kernel has not just taken nudge's WRITE
			n--
		}
	}
	q.taken = q.put + uint32(n) - size // never 2³² behind, even if the queue is never empty
	return n
}

// inUse reports whether the element is in use that the n-th new request gets in a queue of
// size elements.
func (q *sendQueue) inUse(n int, size uint32) bool {
	return isValid(sqeWord(q.queue.at(q.put + uint32(n) - 1 - size)).Load())
}

// nudgeQueued reports whether a WRITE of nudge is in the queue, and the array has an element for it
// beside the callers' elements. It may still be there when all requests before it have completed: a
// READ completes with its response, while the kernel may be busy with a response to the peer.
func (q *sendQueue) nudgeQueued() bool {
	sqe := q.queue.at(q.nudged)
	return q.size < q.queue.mask && isValid(sqeWord(sqe).Load()) && sqe.Id == nudgeID
}

// submit makes the kernel work on the n requests written at put, of which first is the word of the
// first. If the kernel refuses, it returns how many were taken.
func (q *sendQueue) submit(n int, first uint32) (int, error) {
	put := q.put
	sqeWord(q.queue.at(put)).Store(first)
	q.put += uint32(n)
	// siw takes requests one by one and clears the flag of each. While the previous one is still
	// valid, siw has not looked at these yet, and will.
	if n <= int(q.queue.mask) && isValid(sqeWord(q.queue.at(put-1)).Load()) {
		return n, nil
	}
	return q.ringDoorbell(put, n)
}

// ringDoorbell is the rest of submit, for a kernel that may have run out of work.
func (q *sendQueue) ringDoorbell(first uint32, n int) (int, error) {
	err := q.doorbell.Ring()
	if err == nil && !isValid(sqeWord(q.queue.at(first)).Load()) {
		return n, nil
	}
	// The kernel is busy with an earlier request, or it refuses this one, or there is no connection
	// (any more).
	if err = q.resolveDoorbell(err); err == nil {
		return n, nil
	}
	// Take back the requests that the kernel did not take: from the last one on, as it takes them
	// in order.
	for q.put != first && isValid(sqeWord(q.queue.at(q.put-1)).Load()) {
		q.put--
		sqeWord(q.queue.at(q.put)).Store(0)
	}
	if q.put == first+uint32(n) {
		return n, nil
	}
	return int(q.put - first), err
}

// resolveDoorbell determines why a doorbell did not start requests. While the kernel ends a
// connection it refuses doorbells, and then it completes the requests that it finds in
// the queue. These are not known before, and must not be taken back.
func (q *sendQueue) resolveDoorbell(err error) error {
	var deadline time.Time // set on the first retry
	for ; ; time.Sleep(20 * time.Microsecond) {
		state, qerr := q.query.Ask()
		switch {
		// The connection has ended, or the driver has not got the doorbell at all: the QP is to
		// end, and what the kernel has not flushed is flushed here.
		case qerr == nil && state == verbs.StateErr, err != nil && !errors.Is(err, syscall.ENOTCONN) && !errors.Is(err, syscall.EINVAL):
			// A change of state waits for the current one. If the driver did not get the
			// doorbell, it may still find the requests.
			if ferr := provider.FlushQP(q.dev, q.handle); ferr != nil {
				q.Fail(fmt.Errorf("move QP %d to ERR: %w", q.Num, ferr))
			} else {
				q.flush()
			}
			return nil
		// The doorbell has been taken (no error), or the kernel refuses the request itself
		// (EINVAL).
		case !errors.Is(err, syscall.ENOTCONN):
			return err
		case qerr != nil, state != verbs.StateRTS && state != verbs.StateSQE && state != verbs.StateReset, !deadline.IsZero() && time.Now().After(deadline):
			return verbs.ErrState
		// Linux 6.1 says RESET in all states: most such QPs have no connection yet.
		case deadline.IsZero() && state == verbs.StateReset && !q.begun:
			deadline = time.Now().Add(10 * time.Millisecond)
		// The QP is in RTS and yet refuses: its connection is ending or just beginning. Either is
		// over soon.
		case deadline.IsZero():
			deadline = time.Now().Add(time.Second)
		}
		err = q.doorbell.Ring()
	}
}

// flush completes the requests that the kernel left in the queue of a failed QP, because they were
// posted while it flushed the queue (siw_sq_flush). The kernel is done with the queue, so all valid
// elements belong to this side.
func (q *sendQueue) flush() {
	q.State = verbs.StateErr
	for i := q.put - q.queue.mask - 1; i != q.put; i++ {
		sqe := q.queue.at(i)
		if w := sqeWord(sqe); isValid(w.Load()) {
			op := sqe.Opcode // a part of the word
			w.Store(0)
			if sqe.Id != nudgeID {
				q.cq.flush(sqe.Id, q.Num, opcodes[min(int(op), len(opcodes)-1)])
			}
		}
	}
}

// encode writes wr into a free element and returns the word that makes it valid. later
// reports whether other requests precede it in the batch.
func (q *sendQueue) encode(sqe *abi.SiwSqe, wr *verbs.SendWR, later bool) (uint32, error) {
	flags := q.flags | kernelFlags(wr.Flags)
	if wr.Flags&verbs.SendFence != 0 {
		flags |= abi.SIW_WQE_READ_FENCE
	}
	maxSGE := q.MaxSGE
	var op uint8
	switch wr.Opcode {
	case verbs.OpSend:
		op = abi.SIW_OP_SEND
	case verbs.OpSendInv:
		op, sqe.Rkey = abi.SIW_OP_SEND_REMOTE_INV, wr.RKey
	case verbs.OpRDMAWrite:
		op, sqe.Rkey = abi.SIW_OP_WRITE, wr.RKey
		*sqe.Raddr() = wr.RemoteAddr
	case verbs.OpRDMARead, verbs.OpRDMAReadInv:
		op, sqe.Rkey, maxSGE = abi.SIW_OP_READ, wr.RKey, 1
		*sqe.Raddr() = wr.RemoteAddr
		if wr.Opcode == verbs.OpRDMAReadInv {
			op = abi.SIW_OP_READ_LOCAL_INV
		}
		// The kernel refuses fenced reads. Reads are answered in order anyway.
		flags &^= abi.SIW_WQE_READ_FENCE
	case verbs.OpLocalInv:
		op, sqe.Rkey, maxSGE = abi.SIW_OP_INVAL_STAG, wr.RKey, 0
	default:
		return 0, provider.RefuseOpcode(wr.Opcode)
	}
	sqe.Id = wr.ID
	if provider.HasInline(wr) {
		return word(flags|abi.SIW_WQE_INLINE, 1, op), q.encodeInline(sqe, wr, op)
	}
	if len(wr.SGL) > maxSGE {
		return 0, verbs.ErrTooManySGEs
	}
	sqe.Sge()[0] = abi.SiwSge{} // of a read without data
	n, length := copySGL(sqe.Sge(), wr.SGL)
	if length > q.MaxMessage {
		return 0, verbs.ErrMessageTooLong
	}
	if n == 1 && maxSGE > 1 && needsSecondSGE(&sqe.Sge()[0], later) {
		sqe.Sge()[1] = abi.SiwSge{}
		n = 2
	}
	return word(flags, uint8(n), op), nil
}

// kernelFlags returns the flags of a request, except that of a fence: those of package verbs are
// one bit lower.
func kernelFlags(f verbs.SendFlags) uint16 {
	return uint16(f<<1) & (abi.SIW_WQE_SIGNALLED | abi.SIW_WQE_SOLICITED)
}

var _ = [1]struct{}{}[(verbs.SendSignaled<<1^abi.SIW_WQE_SIGNALLED)|(verbs.SendSolicited<<1^abi.SIW_WQE_SOLICITED)]

// simpleOps has the opcodes of simple requests, plus one.
var simpleOps = [verbs.OpRDMARead + 2]uint8{
	verbs.OpSend:      abi.SIW_OP_SEND + 1,
	verbs.OpRDMAWrite: abi.SIW_OP_WRITE + 1,
	verbs.OpRDMARead:  abi.SIW_OP_READ + 1,
}

// minSimple is the shortest message of a simple request: those of one SGE that [needsSecondSGE]
// accepts.
const minSimple = maxHdrInline + 1

// encodeInline copies the data to the place of all SGEs but the first.
//
//go:noinline
func (q *sendQueue) encodeInline(sqe *abi.SiwSqe, wr *verbs.SendWR, op uint8) error {
	dst := unsafe.Slice((*byte)(unsafe.Pointer(&sqe.Sge()[1])), q.MaxInline)
	n, err := q.CopyInline(dst, wr, op == abi.SIW_OP_SEND || op == abi.SIW_OP_WRITE)
	sqe.Sge()[0] = abi.SiwSge{Length: uint32(n)}
	return err
}

// needsSecondSGE reports whether the kernel may send the few bytes of a single SGE wrong,
// or end the connection over them (siw_try_1seg, Linux 6.1 to 7.2). Requests with two SGEs, the
// second of which may be empty, are safe.
//
// Requests that are posted while the kernel is busy are sent by a kernel thread. It takes the wrong
// bytes if they are on two pages. And after every 100 packets a doorbell leaves the rest of the
// queue to the thread, which may reach the next request before the doorbell is done. It then acts
// as the doorbell and reads the bytes from the caller's address space, in which it does not run. So
// only the first request of a doorbell is safe.
func needsSecondSGE(s *abi.SiwSge, later bool) bool {
	return s.Length > 0 && s.Length <= maxHdrInline && (later || s.Length > pageSize-uint32(s.Laddr)%pageSize)
}

const maxHdrInline = 32 // MAX_HDR_INLINE

var pageSize = uint32(os.Getpagesize())

// verbs.SGE is laid out as struct siw_sge; the size is checked here, the fields by a test.
var _ [unsafe.Sizeof(verbs.SGE{})]byte = [unsafe.Sizeof(abi.SiwSge{})]byte{}

// copySGL copies a list to dst and returns how many SGEs are there then, and the sum of their
// lengths. It leaves the empty SGEs of a list out: the kernel looks up no memory for them, but
// siw_tx_hdt dereferences the memory of each SGE before the last byte, which crashes the
// machine, and siw_unref_mem_sgl, which releases the memory of receives too, stops at the
// first SGE without (Linux 6.1 to 7.3).
func copySGL(dst *[abi.SIW_MAX_SGE]abi.SiwSge, sgl []verbs.SGE) (n int, length uint64) {
	if len(sgl) == 1 { // a loop takes a fifth longer
		copySGE(&dst[0], &sgl[0])
		return 1, uint64(sgl[0].Length)
	}
	for i := range sgl {
		if sgl[i].Length == 0 {
			continue
		}
		copySGE(&dst[n], &sgl[i])
		n++
		length += uint64(sgl[i].Length)
	}
	return n, length
}

func copySGE(dst *abi.SiwSge, sge *verbs.SGE) {
	*dst = abi.SiwSge{Laddr: sge.Addr, Length: sge.Length, Lkey: sge.LKey}
}

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int { return int(q.size) }

// Settle implements [provider.Stateful].
func (q *sendQueue) Settle(s verbs.QPState, moved bool) {
	if moved && s == verbs.StateErr && !q.Closed {
		q.flush()
	}
	q.Gate.Settle(s, moved)
}

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	if q.nudgeTimer != nil {
		q.nudgeTimer.Stop()
	}
	q.doorbell.Close()
	q.query.Close()
	q.queue.region.Close()
}
