package softroce

import (
	"encoding/binary"
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// sendQueue is the send queue of a QP.
type sendQueue struct {
	provider.Sends
	ring
	dev      *provider.Device
	doorbell provider.Doorbell
	handle   uint32
}

// Post implements [provider.SendQueue].
func (q *sendQueue) Post(wrs []verbs.SendWR) (n int, err error) {
	q.Lock()
	defer q.Unlock()
	if q.Closed {
		return 0, q.Err()
	}
	index := q.index
	for ; n < len(wrs) && err == nil; n++ {
		switch {
		case q.State < verbs.StateRTS:
			err = verbs.ErrState
		case q.full(index):
			err = verbs.ErrQueueFull
		default:
			err = q.encode(q.slot(index), &wrs[n])
		}
		if err != nil {
			break
		}
		index = q.advance(index)
	}
	if n > 0 {
		q.index = index
		q.publish()
		if derr := q.doorbell.Ring(); derr != nil {
			if ferr := provider.FlushQP(q.dev, q.handle); ferr != nil {
				q.Fail(fmt.Errorf("doorbell of QP %d: %w; move to ERR: %w", q.Num, derr, ferr))
			}
		}
	}
	if n < len(wrs) {
		err = q.Refused(n, wrs[n].ID, err)
	}
	return n, err
}

// encode writes a request into a slot.
func (q *sendQueue) encode(slot []byte, wr *verbs.SendWR) error {
	wqe := &mmap.Slice[abi.RxeSendWqe](slot, 0, 1)[0]
	rc := q.Type == verbs.RC
	switch {
	case wr.Opcode == verbs.OpSend:
	case wr.Opcode == verbs.OpSendImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
	case rc && wr.Opcode == verbs.OpRDMAWriteImm:
		binary.BigEndian.PutUint32(mmap.Bytes(wqe.Wr.Ex.ImmData()), wr.Imm)
		fallthrough
	case rc && (wr.Opcode == verbs.OpRDMAWrite || wr.Opcode == verbs.OpRDMARead):
		*wqe.Wr.Wr.Rdma() = abi.RxeSendWrWrRdma{RemoteAddr: wr.RemoteAddr, Rkey: wr.RKey}
	case rc && (wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd):
		*wqe.Wr.Wr.Atomic() = abi.RxeSendWrWrAtomic{RemoteAddr: wr.RemoteAddr, CompareAdd: provider.Args(wr).CompareAdd, Swap: provider.Args(wr).Swap, Rkey: wr.RKey}
	default:
		return provider.RefuseOpcode(wr.Opcode)
	}
	if q.Type == verbs.UD {
		*wqe.Wr.Wr.Ud() = abi.RxeSendWrWrUd{RemoteQpn: wr.To.QPNum, RemoteQkey: wr.To.QKey, AhNum: wr.To.AH}
	}
	flags, length := wr.Flags&^provider.SendInline, uint64(0)
	switch {
	case provider.HasInline(wr):
		returns := wr.Opcode == verbs.OpRDMARead || wr.Opcode == verbs.OpCompareSwap || wr.Opcode == verbs.OpFetchAdd
		n, err := q.CopyInline(slot[sendSize:][:q.MaxInline], wr, !returns)
		if err != nil {
			return err
		}
		flags, length = flags|provider.SendInline, uint64(n)
	case len(wr.SGL) > q.MaxSGE:
		return verbs.ErrTooManySGEs
	default:
		if length = putSGL(slot, sendSize, wr.SGL); length > q.MaxMessage {
			return verbs.ErrMessageTooLong
		}
	}
	wqe.Wr.WrId, wqe.Wr.Opcode, wqe.Wr.SendFlags = wr.ID, uint32(wr.Opcode-1), uint32(flags)
	wqe.Status, wqe.State, wqe.Iova, wqe.HasRdAtomic = 0, 0, wr.RemoteAddr, 0
	wqe.Dma = abi.RxeDmaInfo{Length: uint32(length), Resid: uint32(length), NumSge: uint32(len(wr.SGL))}
	return nil
}

// Cap implements [provider.SendQueue].
func (q *sendQueue) Cap() int {
	q.Lock()
	defer q.Unlock()
	return int(q.mask)
}

// Release implements [provider.Queue].
func (q *sendQueue) Release() {
	q.Stop(true)
	q.doorbell.Close()
	live.Add(-1)
	q.region.Close()
}
