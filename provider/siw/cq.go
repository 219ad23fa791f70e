package siw

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// CompletionQueue is a siw CQ; see [SendQueue] for why it is exported.
type CompletionQueue struct {
	provider.Gate
	queue array[abi.SiwCqe]
	get   uint32
	arm   *atomic.Uint32 // shared with the kernel, which disarms
	wake  func()

	flushedLen atomic.Int64 // the length of flushed
	flushedMu  sync.Mutex
	flushed    []verbs.WC // completions of flush, returned after the kernel's
}

func newCompletionQueue(a array[abi.SiwCqe], init *provider.CQInit) *CompletionQueue {
	ctrl := unsafe.Add(unsafe.Pointer(a.at(a.mask)), unsafe.Sizeof(abi.SiwCqe{}))
	return &CompletionQueue{
		Gate:  provider.Gate{SingleThreaded: init.SingleThreaded},
		queue: a, wake: init.Wake, arm: (*atomic.Uint32)(unsafe.Pointer(&(*abi.SiwCqCtrl)(ctrl).Flags)),
	}
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

// cqeHead is the word of a CQE that contains its flags.
type cqeHead struct {
	flags, opcode uint8
	status        uint16
}

// Poll implements [provider.CompletionQueue].
func (q *CompletionQueue) Poll(wcs []verbs.WC) int {
	q.Lock() // nothing below panics, and a deferred call would take longer
	return q.Take(wcs)
}

// Available reports whether there are completions. The caller holds the lock.
func (q *CompletionQueue) Available() bool {
	return !q.Closed && (isValid(cqeWord(q.queue.at(q.get)).Load()) || q.flushedLen.Load() > 0)
}

// Take moves completions into wcs, returns how many, and unlocks the queue.
func (q *CompletionQueue) Take(wcs []verbs.WC) int {
	if q.Closed {
		q.Unlock()
		return 0
	}
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
		mmap.StoreRelease(w, 0)
		get++
		if head.status != abi.SIW_WC_SUCCESS {
			if wc.ID == nudgeID {
				continue
			}
			wc.Status = verbs.WCGeneralErr
			if int(head.status) < len(statuses) {
				wc.Status = statuses[head.status]
			}
		}
		n++
	}
	q.get = get
	if n < len(wcs) && q.flushedLen.Load() > 0 {
		n += q.popFlushed(wcs[n:])
	}
	q.Unlock()
	return n
}

// popFlushed moves completions from flushed to wcs and returns how many.
func (q *CompletionQueue) popFlushed(wcs []verbs.WC) int {
	q.flushedMu.Lock()
	defer q.flushedMu.Unlock()
	n := copy(wcs, q.flushed)
	q.flushed = q.flushed[n:]
	q.flushedLen.Store(int64(len(q.flushed)))
	return n
}

// flush adds a completion of a request that the kernel ignores. QPs call it: they are
// closed before the CQ, and their calls may overlap those of the CQ.
func (q *CompletionQueue) flush(id uint64, qpNum uint32, op verbs.WCOpcode) {
	q.flushedMu.Lock()
	q.flushed = append(q.flushed, verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: op, QPNum: qpNum})
	q.flushedLen.Store(int64(len(q.flushed)))
	armed := q.arm.Swap(abi.SIW_NOTIFY_NOT) != abi.SIW_NOTIFY_NOT
	q.flushedMu.Unlock()
	if armed && q.wake != nil {
		q.wake()
	}
}

// Arm implements [provider.CompletionQueue].
func (q *CompletionQueue) Arm(solicitedOnly bool) error {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return q.Err()
	}
	if solicitedOnly {
		q.arm.Store(abi.SIW_NOTIFY_SOLICITED)
	} else {
		q.arm.Store(abi.SIW_NOTIFY_ALL)
	}
	return nil
}

// Cap implements [provider.CompletionQueue].
func (q *CompletionQueue) Cap() int { return int(q.queue.mask) + 1 }

// Resize implements [provider.Resizer]: it lets the kernel refuse.
func (q *CompletionQueue) Resize(size int, resize func(int, provider.UHW) error) error {
	return resize(size, provider.UHW{})
}

// Recycle implements [provider.CompletionQueue].
func (q *CompletionQueue) Recycle() provider.CompletionQueue {
	q.Stop(true)
	next := &CompletionQueue{Gate: provider.Gate{SingleThreaded: q.SingleThreaded}, queue: q.queue, get: q.get, arm: q.arm}
	next.arm.Store(abi.SIW_NOTIFY_NOT)
	for w := cqeWord(next.queue.at(next.get)); isValid(w.Load()); w = cqeWord(next.queue.at(next.get)) {
		w.Store(0)
		next.get++
	}
	return next
}

// Release implements [provider.Queue].
func (q *CompletionQueue) Release() {
	q.Stop(true)
	q.queue.region.Close()
}
