package rxe

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// SendQueue is an rxe QP's send queue. It is exported so that uverbs can call
// it without an interface, through which the caller's work requests would
// escape to the heap.
type SendQueue struct {
	provider.Gate
	dev      provider.Device
	ring     ring
	doorbell provider.Doorbell
	prod     uint32 // ours; the shared word is its copy
	typ      provider.QPType
	qpn      uint32
	handle   uint32
	maxSGE   int
	room     int // for SGEs or inline data in a slot
	caps     uint64
	maxData  int // inline bytes
	maxMsg   uint64
}

// newSendQueue takes over the mapped ring.
func newSendQueue(r ring, typ provider.QPType, info provider.QPInfo, dev provider.Device) (*SendQueue, error) {
	q := &SendQueue{
		dev: dev, handle: info.Handle, typ: typ, caps: dev.Caps, ring: r, room: r.SlotSize() - int(unsafe.Sizeof(abi.RxeSendWqe{})), prod: r.LoadProducer(), qpn: info.QPNum,
		maxSGE: int(info.Cap.MaxSendSGE), maxData: int(info.Cap.MaxInline), maxMsg: uint64(dev.MaxMessage),
	}
	if typ == provider.UD { // the kernel drops longer ones and says nothing
		q.maxMsg = uint64(dev.MTU)
	}
	var err error
	if q.doorbell, err = provider.NewDoorbell(dev, info.Handle, worksInDoorbell(release())); err != nil {
		q.Release().Close()
		return nil, err
	}
	return q, nil
}

// release returns the kernel's, "6.12.57-amd64".
func release() string {
	var u unix.Utsname
	unix.Uname(&u) // fails for bad addresses only
	return unix.ByteSliceToString(u.Release[:])
}

// worksInDoorbell reports whether a kernel sends in the caller of rxe_post_send,
// which may take milliseconds: before Linux 6.10. Newer ones queue the work.
// Where that was ported back, as its number does not say, doorbells take some
// nanoseconds more than they need.
func worksInDoorbell(release string) bool {
	var major, minor int
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major < 6 || major == 6 && minor < 10
}

// takenBy says which opcodes which QPs take: a bit for each type.
var takenBy = [...]uint16{
	provider.OpRDMAWrite:    1<<provider.RC | 1<<provider.UC,
	provider.OpRDMAWriteImm: 1<<provider.RC | 1<<provider.UC,
	provider.OpSend:         1<<provider.RC | 1<<provider.UC | 1<<provider.UD,
	provider.OpSendImm:      1<<provider.RC | 1<<provider.UC | 1<<provider.UD,
	provider.OpRDMARead:     1 << provider.RC,
	provider.OpCompareSwap:  1 << provider.RC,
	provider.OpFetchAdd:     1 << provider.RC,
	provider.OpLocalInv:     1 << provider.RC,
	provider.OpBindMW:       1<<provider.RC | 1<<provider.UC,
	provider.OpSendInv:      1 << provider.RC,
	provider.OpFlush:        1 << provider.RC,
	provider.OpAtomicWrite:  1 << provider.RC,
}

// Post implements [provider.SendQueue].
func (q *SendQueue) Post(wrs []provider.SendWR) (int, error) {
	q.Lock() // a deferred call would take longer; only encodeData can panic
	n, err := q.post(wrs)
	q.Unlock()
	return n, err
}

func (q *SendQueue) post(wrs []provider.SendWR) (int, error) {
	if q.Closed {
		return 0, q.Err()
	}
	var (
		n    int
		err  error
		prod = q.prod
		free = q.ring.Free(prod, q.ring.LoadConsumer())
	)
	if q.State < provider.StateRTS {
		err = provider.ErrState
	}
	for ; err == nil && n < len(wrs); n++ {
		if free == 0 {
			if err = provider.ErrQueueFull; q.ring.Cap() == 0 {
				err = provider.ErrNoSendRoom
			}
			break
		}
		wr := &wrs[n]
		if err = q.encode((*abi.RxeSendWqe)(q.ring.Slot(prod)), wr); err != nil {
			break
		}
		prod = q.ring.Next(prod)
		free--
	}
	if n > 0 {
		q.prod = prod
		q.ring.StoreProducer(prod)
		if derr := q.doorbell.Ring(); derr != nil {
			q.unrung(derr)
		}
	}
	if err != nil && err != provider.ErrQueueFull && len(wrs) > 0 {
		err = q.fail(wrs, n, err)
	}
	return n, err
}

// unrung deals with a doorbell that failed. The kernel reads the producer index
// also when it comes to the end of earlier requests (rxe_requester), so what has
// been published cannot be taken back: the QP is moved to the error state, in
// which the kernel completes all requests.
func (q *SendQueue) unrung(err error) {
	if ferr := provider.FlushQP(q.dev, q.handle); ferr != nil {
		q.Fail(fmt.Errorf("doorbell of QP %d: %w; move to ERR: %w", q.qpn, err, ferr))
	}
}

func (q *SendQueue) fail(wrs []provider.SendWR, i int, err error) error {
	return &provider.PostError{Op: "post send", QPNum: q.qpn, Index: i, ID: wrs[i].ID, Err: err}
}

// needs are the capabilities that some opcodes take, which older kernels lack.
var needs = [len(takenBy)]uint64{
	provider.OpFlush:       abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL,
	provider.OpAtomicWrite: abi.IB_UVERBS_DEVICE_ATOMIC_WRITE,
}

// encode writes wr into a free slot. The fields it leaves alone are the
// kernel's scratch space, which the kernel sets before it reads them.
func (q *SendQueue) encode(wqe *abi.RxeSendWqe, wr *provider.SendWR) error {
	simple := wr.Opcode == provider.OpRDMAWrite || wr.Opcode == provider.OpSend || wr.Opcode == provider.OpRDMARead
	if simple && q.typ == provider.RC && len(wr.SGL) == 1 && q.maxSGE > 0 && len(wr.Inline) == 0 && len(wr.InlineList) == 0 {
		return q.encodeSimple(wqe, wr)
	}
	if int(wr.Opcode) >= len(takenBy) || takenBy[wr.Opcode]&(1<<q.typ) == 0 || q.caps&needs[wr.Opcode] != needs[wr.Opcode] {
		return provider.RefuseOpcode(wr.Opcode)
	}
	if err := encodeOperation(wqe, wr); err != nil {
		return err
	}
	if q.typ == provider.UD {
		ud := wqe.Wr.Wr.Ud()
		ud.RemoteQpn = wr.To.QPNum
		ud.RemoteQkey = wr.To.QKey
		ud.PkeyIndex = 0
		ud.AhNum = wr.To.AH
	}
	flags, err := q.encodeData(wqe, wr)
	if err != nil {
		return err
	}
	wqe.Wr.WrId = wr.ID
	wqe.Wr.Opcode = uint32(wr.Opcode - 1)
	wqe.Wr.SendFlags = uint32(flags)
	wqe.Status = 0
	wqe.State = 0 // posted
	wqe.Iova = wr.RemoteAddr
	wqe.HasRdAtomic = 0
	return nil
}

// encodeSimple is encode for what most requests are: it takes two thirds of the
// time (BenchmarkPost).
func (q *SendQueue) encodeSimple(wqe *abi.RxeSendWqe, wr *provider.SendWR) error {
	sge := &wr.SGL[0]
	if uint64(sge.Length) > q.maxMsg {
		return provider.ErrMessageTooLong
	}
	rdma := wqe.Wr.Wr.Rdma() // which a SEND ignores
	rdma.RemoteAddr, rdma.Rkey = wr.RemoteAddr, wr.RKey
	*(*provider.SGE)(unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe))) = *sge
	setDMA(&wqe.Dma, uint64(sge.Length), 1)
	flags := wr.Flags &^ provider.SendInline
	if wr.Opcode == provider.OpRDMARead {
		flags &^= provider.SendFence // see fetches
	}
	wqe.Wr.WrId, wqe.Wr.Opcode, wqe.Wr.SendFlags = wr.ID, uint32(wr.Opcode-1), uint32(flags)
	wqe.Status, wqe.State, wqe.Iova, wqe.HasRdAtomic = 0, 0, wr.RemoteAddr, 0
	return nil
}

// encodeOperation writes what is peculiar to an opcode.
func encodeOperation(wqe *abi.RxeSendWqe, wr *provider.SendWR) error {
	switch wr.Opcode {
	case provider.OpSend:
	case provider.OpSendImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
	case provider.OpSendInv, provider.OpLocalInv:
		*wqe.Wr.Ex.InvalidateRkey() = wr.InvalidateRKey
	case provider.OpRDMAWriteImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
		fallthrough
	case provider.OpRDMAWrite, provider.OpRDMARead, provider.OpAtomicWrite:
		rdma := wqe.Wr.Wr.Rdma()
		rdma.RemoteAddr = wr.RemoteAddr
		rdma.Rkey = wr.RKey
	case provider.OpCompareSwap, provider.OpFetchAdd:
		atomic := wqe.Wr.Wr.Atomic()
		atomic.RemoteAddr = wr.RemoteAddr
		atomic.CompareAdd = wr.CompareAdd
		atomic.Swap = wr.Swap
		atomic.Rkey = wr.RKey
	case provider.OpFlush:
		flush := wqe.Wr.Wr.Flush()
		flush.RemoteAddr = wr.RemoteAddr
		flush.Length = wr.Flush.Length
		flush.Rkey = wr.RKey
		flush.Type = uint8(wr.Flush.Type)
		flush.Level = uint8(wr.Flush.Level)
	case provider.OpBindMW:
		if wr.Bind == nil {
			return provider.ErrBind
		}
		mw := wqe.Wr.Wr.Mw()
		mw.Addr = wr.Bind.Addr
		mw.Length = wr.Bind.Length
		mw.MrLkey = wr.Bind.LKey
		mw.MwRkey = wr.Bind.RKey
		mw.Rkey = wr.Bind.NewRKey
		mw.Access = wr.Bind.Access
	}
	return nil
}

// encodeData writes the payload, or its SGEs, right behind the WQE.
func (q *SendQueue) encodeData(wqe *abi.RxeSendWqe, wr *provider.SendWR) (provider.SendFlags, error) {
	payload := unsafe.Add(unsafe.Pointer(wqe), unsafe.Sizeof(*wqe))
	flags := wr.Flags &^ provider.SendInline
	if fetches[wr.Opcode] || wr.Opcode == provider.OpAtomicWrite {
		flags &^= provider.SendFence
	}
	switch wr.Opcode {
	case provider.OpLocalInv, provider.OpBindMW, provider.OpFlush:
		switch {
		case len(wr.SGL) > 0:
			return 0, provider.ErrTooManySGEs
		case len(wr.Inline) > 0 || len(wr.InlineList) > 0:
			return 0, provider.ErrInlineOp
		}
		var length uint64
		if wr.Opcode == provider.OpFlush {
			length = uint64(wr.Flush.Length)
		}
		setDMA(&wqe.Dma, length, 0)
		return flags, nil
	case provider.OpAtomicWrite:
		if len(wr.Inline) != 8 || len(wr.InlineList) > 0 || len(wr.SGL) > 0 || q.room < 8 {
			return 0, provider.ErrAtomicWrite
		}
		defer q.UnlockIfPanicking()
		copy(unsafe.Slice((*byte)(payload), 8), wr.Inline)
		setDMA(&wqe.Dma, 8, 0)
		return flags, nil
	}
	if len(wr.Inline) > 0 || len(wr.InlineList) > 0 {
		switch {
		case len(wr.SGL) > 0:
			return 0, provider.ErrInlineSGL
		case fetches[wr.Opcode]:
			return 0, provider.ErrInlineOp
		}
		defer q.UnlockIfPanicking() // the caller's memory may be gone
		dst := unsafe.Slice((*byte)(payload), q.maxData)
		n := len(wr.Inline)
		if n > len(dst) {
			return 0, provider.ErrInlineTooLong
		}
		copy(dst, wr.Inline)
		for _, b := range wr.InlineList {
			if len(b) > len(dst)-n {
				return 0, provider.ErrInlineTooLong
			}
			n += copy(dst[n:], b)
		}
		if uint64(n) > q.maxMsg {
			return 0, provider.ErrMessageTooLong
		}
		setDMA(&wqe.Dma, uint64(n), 0)
		return flags | provider.SendInline, nil
	}
	if len(wr.SGL) > q.maxSGE {
		return 0, provider.ErrTooManySGEs
	}
	length := copySGL(payload, wr.SGL)
	switch {
	case length > q.maxMsg:
		return 0, provider.ErrMessageTooLong
	case length != 8 && (wr.Opcode == provider.OpCompareSwap || wr.Opcode == provider.OpFetchAdd):
		return 0, provider.ErrAtomicSGL
	}
	setDMA(&wqe.Dma, length, len(wr.SGL))
	return flags, nil
}

// fetches are the operations that bring data, which needs memory to go to.
//
// They, and OpAtomicWrite, are never fenced: the kernel counts them among those
// that a fence waits for, and when such a one is to be sent again, as when its
// packet was lost, it waits for itself, for ever. They need no fence: they read no
// memory here, and are answered in order.
var fetches = [len(takenBy)]bool{provider.OpRDMARead: true, provider.OpCompareSwap: true, provider.OpFetchAdd: true}

// Cap implements [provider.SendQueue].
func (q *SendQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return q.ring.Cap()
}

// Release implements [provider.Queue].
func (q *SendQueue) Release() *mmap.Region {
	q.Stop(true)
	q.doorbell.Close()
	return q.ring.region
}
