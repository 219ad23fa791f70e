package rxe

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// sendQueue is the send queue of a QP.
type sendQueue struct {
	provider.Sends
	producer
	dev         *provider.Device
	doorbell    provider.Doorbell
	handle      uint32
	maxSimple   uint32     // longest message of a simple request; 0 if none is simple
	payloadSize int        // bytes for SGEs or inline data in a slot
	modifying   sync.Mutex // for reads, see checkReads
	reads       int
}

// newSendQueue takes over the mapped ring.
func newSendQueue(r ring, init *provider.QPInit, info provider.QPInfo, dev *provider.Device) (*sendQueue, error) {
	q := &sendQueue{dev: dev, handle: info.Handle, payloadSize: r.SlotSize() - int(unsafe.Sizeof(abi.RxeSendWqe{}))}
	q.InitSends(dev, init, info)
	q.use(r)
	if q.Type == verbs.RC {
		q.maxSimple = q.MaxOneSGE()
	}
	var err error
	if q.doorbell, err = provider.NewDoorbell(dev, info.Handle, inDoorbell()); err != nil {
		q.Release()
		return nil, err
	}
	return q, nil
}

// inDoorbell is sendsInDoorbell of this kernel.
var inDoorbell = sync.OnceValue(func() bool { return sendsInDoorbell(sys.KernelRelease()) })

// sendsInDoorbell reports whether a kernel sends in the caller of rxe_post_send, which may take
// milliseconds, as before Linux 6.10. Newer kernels queue the work. With older kernels that do so
// as well, which the release does not show, doorbells take some nanoseconds more than necessary.
func sendsInDoorbell(release string) bool { return sys.Before(release, 6, 10) }

// Modify implements [provider.SendQueue].
//
// A request that fails completes before rxe moves the QP to ERR (rxe_completer), which may come after
// RESET. RESET waits until rxe is done with the requests, so a second one is the last change.
func (q *sendQueue) Modify(a verbs.QPAttr, mask verbs.QPAttrMask, modify func(provider.UHW) error) error {
	q.modifying.Lock()
	defer q.modifying.Unlock()
	if mask&verbs.MaskMaxDestRDAtomic != 0 && host.Get(q.dev.FD) == nil { // the kernel's own rxe
		if err := q.checkReads(int(a.MaxDestRDAtomic), sys.KernelRelease()); err != nil {
			return err
		}
	}
	err := modify(provider.UHW{})
	if err != nil {
		return err
	}
	if mask&verbs.MaskMaxDestRDAtomic != 0 {
		q.reads = slots(int(a.MaxDestRDAtomic))
	}
	if mask&verbs.MaskState != 0 && a.State == verbs.StateReset {
		err = modify(provider.UHW{})
	}
	return err
}

// checkReads refuses to let a QP answer more READs than it was made ready for: older kernels write outside
// of the old array then, which belongs to anyone (rxe_qp_from_attr, free_rd_atomic_resources). Some
// maintained ones have been mended since, which the release does not show.
func (q *sendQueue) checkReads(n int, release string) error {
	if q.reads == 0 || slots(n) <= q.reads || !sys.Before(release, 7, 3) {
		return nil
	}
	return fmt.Errorf("%w: MaxDestRDAtomic %d of a QP that has room for %d: rxe before Linux 7.3 may corrupt the kernel's memory: use a new QP", errors.ErrUnsupported, n, q.reads-1)
}

// slots returns 1 more than the size of the array that rxe makes for n READs: 0 means none.
func slots(n int) int {
	if n == 0 {
		return 1
	}
	return provider.RoundUp(n) + 1
}

// qpTypes contains the types of QPs that accept each opcode, as bits.
var qpTypes = [...]uint16{
	verbs.OpRDMAWrite:    1<<verbs.RC | 1<<verbs.UC,
	verbs.OpRDMAWriteImm: 1<<verbs.RC | 1<<verbs.UC,
	verbs.OpSend:         1<<verbs.RC | 1<<verbs.UC | 1<<verbs.UD,
	verbs.OpSendImm:      1<<verbs.RC | 1<<verbs.UC | 1<<verbs.UD,
	verbs.OpRDMARead:     1 << verbs.RC,
	verbs.OpCompareSwap:  1 << verbs.RC,
	verbs.OpFetchAdd:     1 << verbs.RC,
	verbs.OpLocalInv:     1 << verbs.RC,
	verbs.OpBindMW:       1<<verbs.RC | 1<<verbs.UC,
	verbs.OpSendInv:      1 << verbs.RC,
	verbs.OpFlush:        1 << verbs.RC,
	verbs.OpAtomicWrite:  1 << verbs.RC,
}

// Post implements [provider.SendQueue]. Simple requests, which are the most frequent, are written
// without a call.
func (q *sendQueue) Post(wrs []verbs.SendWR) (n int, err error) {
	q.Lock() // a deferred call would take longer; only postRest can panic
	room, slots, prod := 0, q.Slots, q.prod
	if q.State >= verbs.StateRTS && !q.Closed {
		room = q.room(len(wrs))
	}
	for ; n < room; n++ {
		wr := &wrs[n]
		if wr.Opcode != verbs.OpSend && wr.Opcode != verbs.OpRDMAWrite && wr.Opcode != verbs.OpRDMARead ||
			wr.Flags&(verbs.SendFence|provider.SendInline) != 0 || len(wr.Inline) != 0 || len(wr.SGL) != 1 || wr.Args != nil {
			break
		}
		sge := &wr.SGL[0]
		if sge.Length-1 >= q.maxSimple {
			break
		}
		wqe := (*abi.RxeSendWqe)(slots.Slot(prod + uint32(n)))
		rdma := wqe.Wr.Wr.Rdma() // which a SEND ignores
		rdma.RemoteAddr, rdma.Rkey = wr.RemoteAddr, wr.RKey
		setDMA(&wqe.Dma, copySGE(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe)), sge), 1)
		encodeHead(wqe, wr, wr.Flags)
	}
	if n < len(wrs) || n == 0 {
		n, err = q.postRest(wrs, n)
	}
	if n > 0 {
		q.publish(n)
		if derr := q.doorbell.Ring(); derr != nil {
			q.handleDoorbellError(derr)
		}
	}
	q.Unlock()
	return n, err
}

// postRest writes the requests from n on. It returns how many have been written, and why the others
// have not.
func (q *sendQueue) postRest(wrs []verbs.SendWR, n int) (_ int, err error) {
	if q.Closed {
		return 0, q.Err()
	}
	room := q.room(len(wrs))
	if q.State < verbs.StateRTS {
		err = verbs.ErrState
	}
	for ; err == nil && n < len(wrs); n++ {
		if n == room {
			if err = verbs.ErrQueueFull; q.ring.Cap() == 0 {
				err = verbs.ErrNoSendRoom
			}
			break
		}
		if err = q.encode((*abi.RxeSendWqe)(q.Slot(q.prod+uint32(n))), &wrs[n]); err != nil {
			break
		}
	}
	if n < len(wrs) {
		err = q.Refused(n, wrs[n].ID, err)
	}
	return n, err
}

// handleDoorbellError handles a doorbell that failed. The kernel also reads the producer index when
// it has processed earlier requests (rxe_requester), so published requests cannot be withdrawn: the
// QP is moved to the error state, in which the kernel completes all requests.
func (q *sendQueue) handleDoorbellError(err error) {
	if ferr := provider.FlushQP(q.dev, q.handle); ferr != nil {
		q.Fail(fmt.Errorf("doorbell of QP %d: %w; move to ERR: %w", q.Num, err, ferr))
	}
}

// requiredCaps contains the capabilities that some opcodes require and older kernels lack.
var requiredCaps = [len(qpTypes)]uint64{
	verbs.OpFlush:       abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL,
	verbs.OpAtomicWrite: abi.IB_UVERBS_DEVICE_ATOMIC_WRITE,
}

// encode writes any request into a free slot.
func (q *sendQueue) encode(wqe *abi.RxeSendWqe, wr *verbs.SendWR) error {
	if int(wr.Opcode) >= len(qpTypes) || qpTypes[wr.Opcode]&(1<<q.Type) == 0 || q.dev.Attr.CapFlags&requiredCaps[wr.Opcode] != requiredCaps[wr.Opcode] {
		return provider.RefuseOpcode(wr.Opcode)
	}
	if err := encodeOperation(wqe, wr); err != nil {
		return err
	}
	if q.Type == verbs.UD {
		ud := wqe.Wr.Wr.Ud()
		ud.RemoteQpn = wr.To.QPNum
		ud.RemoteQkey = wr.To.QKey
		ud.PkeyIndex = 0
		ud.AhNum = wr.To.AH
	}
	inline, err := q.encodeData(wqe, wr)
	if err != nil {
		return err
	}
	flags := wr.Flags&^provider.SendInline | inline
	if neverFenced&(1<<wr.Opcode) != 0 {
		flags &^= verbs.SendFence
	}
	encodeHead(wqe, wr, flags)
	return nil
}

// encodeHead writes the fields of all requests. The other fields are the kernel's scratch space,
// which it sets before it reads them.
func encodeHead(wqe *abi.RxeSendWqe, wr *verbs.SendWR, flags verbs.SendFlags) {
	wqe.Wr.WrId, wqe.Wr.Opcode, wqe.Wr.SendFlags = wr.ID, uint32(wr.Opcode-1), uint32(flags)
	wqe.Status, wqe.State, wqe.Iova, wqe.HasRdAtomic = 0, 0, wr.RemoteAddr, 0 // state 0: posted
}

// encodeOperation writes the fields that are specific to an opcode.
func encodeOperation(wqe *abi.RxeSendWqe, wr *verbs.SendWR) error {
	switch wr.Opcode {
	case verbs.OpSend:
	case verbs.OpSendImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
	case verbs.OpSendInv, verbs.OpLocalInv:
		*wqe.Wr.Ex.InvalidateRkey() = wr.RKey
	case verbs.OpRDMAWriteImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
		fallthrough
	case verbs.OpRDMAWrite, verbs.OpRDMARead, verbs.OpAtomicWrite:
		rdma := wqe.Wr.Wr.Rdma()
		rdma.RemoteAddr = wr.RemoteAddr
		rdma.Rkey = wr.RKey
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		atomic := wqe.Wr.Wr.Atomic()
		atomic.RemoteAddr = wr.RemoteAddr
		args := provider.Args(wr)
		atomic.CompareAdd = args.CompareAdd
		atomic.Swap = args.Swap
		atomic.Rkey = wr.RKey
	case verbs.OpFlush:
		flush := wqe.Wr.Wr.Flush()
		args := provider.Args(wr).Flush
		flush.RemoteAddr = wr.RemoteAddr
		flush.Length = args.Length
		flush.Rkey = wr.RKey
		flush.Type = uint8(args.Type)
		flush.Level = uint8(args.Level)
	case verbs.OpBindMW:
		bind := provider.Args(wr).Bind
		if bind == nil {
			return verbs.ErrBind
		}
		mw := wqe.Wr.Wr.Mw()
		mw.Addr = bind.Addr
		mw.Length = bind.Length
		mw.MrLkey = bind.LKey
		mw.MwRkey = bind.RKey
		mw.Rkey = bind.NewRKey
		mw.Access = uint32(bind.Access)
	}
	return nil
}

// encodeData writes the payload, or its SGEs, directly after the WQE. It returns the flag of inline
// data.
func (q *sendQueue) encodeData(wqe *abi.RxeSendWqe, wr *verbs.SendWR) (verbs.SendFlags, error) {
	payload := unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe))
	switch wr.Opcode {
	case verbs.OpLocalInv, verbs.OpBindMW, verbs.OpFlush:
		switch {
		case len(wr.SGL) > 0:
			return 0, verbs.ErrTooManySGEs
		case provider.HasInline(wr):
			return 0, verbs.ErrInlineOp
		}
		var length uint64
		if wr.Opcode == verbs.OpFlush {
			length = uint64(provider.Args(wr).Flush.Length)
		}
		setDMA(&wqe.Dma, length, 0)
		return 0, nil
	case verbs.OpAtomicWrite:
		if len(wr.Inline) != 8 || len(provider.Args(wr).InlineList) > 0 || len(wr.SGL) > 0 || q.payloadSize < 8 {
			return 0, verbs.ErrAtomicWrite
		}
		defer q.UnlockIfPanicking()
		copy(unsafe.Slice((*byte)(payload), 8), wr.Inline)
		setDMA(&wqe.Dma, 8, 0)
		return 0, nil
	}
	if provider.HasInline(wr) {
		n, err := q.CopyInline(unsafe.Slice((*byte)(payload), q.MaxInline), wr, returnsData&(1<<wr.Opcode) == 0)
		if err != nil {
			return 0, err
		}
		setDMA(&wqe.Dma, uint64(n), 0)
		return provider.SendInline, nil
	}
	if len(wr.SGL) > q.MaxSGE {
		return 0, verbs.ErrTooManySGEs
	}
	length := copySGL(payload, wr.SGL)
	switch {
	case length > q.MaxMessage:
		return 0, verbs.ErrMessageTooLong
	// The kernel takes the 8 bytes in several SGEs; adapters do not.
	case (wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd) &&
		(length != 8 || !slices.ContainsFunc(wr.SGL, func(s verbs.SGE) bool { return s.Length == 8 })):
		return 0, verbs.ErrAtomicSGL
	}
	setDMA(&wqe.Dma, length, len(wr.SGL))
	return 0, nil
}

// returnsData contains, as bits, the operations that return data and need memory for it.
const returnsData = 1<<verbs.OpRDMARead | 1<<verbs.OpCompareSwap | 1<<verbs.OpFetchAdd

// neverFenced contains the operations that are never fenced. A fence of the kernel waits for them,
// so one that is sent again, for example after its packet was lost, would wait for itself forever.
// They need no fence: they read no memory here, and the peer answers them in order.
const neverFenced = returnsData | 1<<verbs.OpAtomicWrite

// Flush implements [provider.Flusher].
func (q *sendQueue) Flush() (wcs []verbs.WC) {
	defer q.Unlock()
	if !q.Lose() {
		return nil
	}
	for i := q.LoadConsumer(); i != q.prod; i = q.Next(i) {
		wqe := (*abi.RxeSendWqe)(q.Slot(i))
		wcs = append(wcs, verbs.WC{ID: wqe.Wr.WrId, Status: verbs.WCFlushErr, QPNum: q.Num})
	}
	q.StoreConsumer(q.prod)
	return wcs
}

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return q.ring.Cap()
}

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	q.doorbell.Close()
	q.region.Close()
}
