package siw

import (
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// completionQueue is a siw CQ.
type completionQueue struct {
	provider.Completions
	queue array[abi.SiwCqe]
	get   uint32
	arm   *atomic.Uint32 // shared with the kernel, which disarms
	wake  func()
}

func newCompletionQueue(a array[abi.SiwCqe], init *provider.CQInit) *completionQueue {
	ctrl := unsafe.Add(unsafe.Pointer(a.at(a.mask)), unsafe.Sizeof(abi.SiwCqe{}))
	q := &completionQueue{queue: a, wake: init.Wake, arm: (*atomic.Uint32)(unsafe.Pointer(&(*abi.SiwCqCtrl)(ctrl).Flags))}
	q.SingleThreaded, q.Mask = init.SingleThreaded, validWord()
	q.Word = cqeWord(a.at(0))
	return q
}

var opcodes = [...]verbs.WCOpcode{
	abi.SIW_OP_WRITE:           verbs.WCRDMAWrite,
	abi.SIW_OP_READ:            verbs.WCRDMARead,
	abi.SIW_OP_READ_LOCAL_INV:  verbs.WCRDMARead,
	abi.SIW_OP_SEND:            verbs.WCSend,
	abi.SIW_OP_SEND_WITH_IMM:   verbs.WCSend,
	abi.SIW_OP_SEND_REMOTE_INV: verbs.WCSend,
	abi.SIW_OP_RECEIVE:         verbs.WCRecv,
	abi.SIW_OP_INVAL_STAG:      verbs.WCLocalInv,
	abi.SIW_OP_REG_MR:          0,
}

var statuses = [...]verbs.WCStatus{
	abi.SIW_WC_SUCCESS:         verbs.WCSuccess,
	abi.SIW_WC_LOC_LEN_ERR:     verbs.WCLocLenErr,
	abi.SIW_WC_LOC_PROT_ERR:    verbs.WCLocProtErr,
	abi.SIW_WC_LOC_QP_OP_ERR:   verbs.WCLocQPOpErr,
	abi.SIW_WC_WR_FLUSH_ERR:    verbs.WCFlushErr,
	abi.SIW_WC_BAD_RESP_ERR:    verbs.WCBadRespErr,
	abi.SIW_WC_LOC_ACCESS_ERR:  verbs.WCLocAccessErr,
	abi.SIW_WC_REM_ACCESS_ERR:  verbs.WCRemAccessErr,
	abi.SIW_WC_REM_INV_REQ_ERR: verbs.WCRemInvReqErr,
	abi.SIW_WC_GENERAL_ERR:     verbs.WCGeneralErr,
}

// cqeHead is the word of a CQE that contains its flags. It is read at once, so that status and
// opcode belong to the valid flag.
type cqeHead struct {
	flags, opcode uint8
	status        uint16
}

// Take implements [provider.CompletionQueue].
func (q *completionQueue) Take(wcs []verbs.WC) int {
	queue, get, n := q.queue.slots, q.get, 0
	for n < len(wcs) {
		cqe := queue.at(get)
		w := cqeWord(cqe)
		v := w.Load()
		if !isValid(v) {
			break
		}
		head := *(*cqeHead)(unsafe.Pointer(&v))
		wc := &wcs[n]
		*wc = verbs.WC{ID: cqe.Id, ByteLen: cqe.Bytes, QPNum: uint32(*cqe.QpId())}
		if int(head.opcode) < len(opcodes) {
			wc.Opcode = opcodes[head.opcode]
		}
		// Last, as the kernel may then overwrite the element.
		mmap.StoreRelease(w, 0)
		get++
		if head.status != abi.SIW_WC_SUCCESS {
			if wc.ID == nudgeID { // a failed WRITE of nudge, which the program knows nothing of
				continue
			}
			wc.Status = verbs.WCGeneralErr
			if int(head.status) < len(statuses) {
				wc.Status = statuses[head.status]
			}
		}
		n++
	}
	q.get, q.Word = get, cqeWord(queue.at(get))
	q.Unlock()
	return n
}

// flush adds a completion of a request that the kernel ignores. QPs call it; they are closed before
// the CQ, and their calls may overlap calls of the CQ. As the kernel would (siw_cq_notify_now),
// flush disarms an armed CQ and wakes its waiter.
func (q *completionQueue) flush(id uint64, qpNum uint32, op verbs.WCOpcode) {
	q.Add(verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: op, QPNum: qpNum})
	q.notify()
}

// flushPosted is flush of a request that is posted to a QP in the error state. It reports whether
// the queue, which is of the given size, takes the request.
func (q *completionQueue) flushPosted(of *provider.Requests, size uint32, id uint64, op verbs.WCOpcode) bool {
	ok := q.AddFlushed(of, size, id, op)
	if ok {
		q.notify()
	}
	return ok
}

func (q *completionQueue) notify() {
	armed := q.arm.Swap(abi.SIW_NOTIFY_NOT) != abi.SIW_NOTIFY_NOT
	if armed && q.wake != nil {
		q.wake()
	}
}

// Arm implements [provider.CompletionQueue]. The kernel does not know which receives the peer has solicited
// (siw_rqe_complete), and would raise no event for them: it is armed for all.
func (q *completionQueue) Arm(bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	q.arm.Store(abi.SIW_NOTIFY_ALL)
	return nil
}

// Cap implements [provider.CompletionQueue].
func (q *completionQueue) Cap() int { return int(q.queue.mask) + 1 }

// Resize implements [provider.Resizer]: it lets the kernel refuse.
func (q *completionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	return resize(size, provider.UHW{})
}

// Recycle implements [provider.CompletionQueue].
func (q *completionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	next := &completionQueue{queue: q.queue, get: q.get, arm: q.arm, wake: q.wake}
	next.SingleThreaded, next.Mask = q.SingleThreaded, q.Mask
	next.arm.Store(abi.SIW_NOTIFY_NOT)
	for next.Word = cqeWord(next.queue.at(next.get)); isValid(next.Word.Load()); next.Word = cqeWord(next.queue.at(next.get)) {
		next.Word.Store(0)
		next.get++
	}
	return next
}

// Release implements [provider.Queue].
func (q *completionQueue) Release() {
	q.Stop(true)
	q.queue.region.Close()
}
