package mlx5

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// The dynamically connected transport (DC) has an initiator, DCI, and a target, DCT.
//
// A DCI is a send queue. Each of its requests names the target, in an address vector between the
// control segment and what RC has there (struct mlx5_wqe_datagram_seg). Control segment and vector fill
// the first block, so the address of the peer's memory begins the next one, which may be the first
// of the queue. Completions are those of RC.
//
// A DCT has no queue: what is sent to it takes receives of its SRQ. The kernel keeps its
// attributes until RTR, then makes it in the device, and answers with its number
// (mlx5_ib_modify_dct); until then a DCT is nothing but a user index, by which completions name it.

// dcHead is the size of what precedes the data in a DCI's longest request, an atomic.
const dcHead = ctrlSize + avSize + remoteSize + atomicSize

// noRegister is that of a DCT, which rings no doorbell.
var noRegister = &register{}

// errTarget is the error of a send request for a DCT.
var errTarget = fmt.Errorf("a DCT only receives, post to a DCI: %w", errors.ErrUnsupported)

// setDC sets what a request for a QP of DC has besides. The kernel's QP has type DRIVER, and these
// flags tell which one it is (process_vendor_flags).
func setDC(req *abi.Mlx5IbCreateQp, init *provider.QPInit) {
	switch init.Type {
	case verbs.DCI:
		req.Flags |= abi.MLX5_QP_FLAG_TYPE_DCI
	case verbs.DCT:
		req.Flags |= abi.MLX5_QP_FLAG_TYPE_DCT
		*req.AccessKey() = init.DCKey
	}
}

// putTarget writes the address vector of a DCI's request that begins at an offset, and returns the
// place of what follows it: the next block, as the vector ends the first.
func (q *sendQueue) putTarget(off uintptr, wr *verbs.SendWR) (rest unsafe.Pointer, err error) {
	a, err := q.handle(wr)
	if err != nil {
		return nil, err
	}
	key := q.key
	if wr.Args != nil && wr.Args.DCKey != 0 {
		key = wr.Args.DCKey
	}
	a.putDC(unsafe.Add(q.base, off+ctrlSize), wr.To.QPNum, key)
	return unsafe.Add(q.base, (off+block)&(q.bytes-1)), nil
}

// modifyTarget is Modify of a DCT.
func (q *sendQueue) modifyTarget(attr verbs.QPAttr, mask verbs.QPAttrMask, modify func(provider.UHW) error) error {
	if mask&verbs.MaskState == 0 || attr.State != verbs.StateRTR {
		return modify(provider.UHW{})
	}
	var resp abi.Mlx5IbModifyQpResp
	if err := modify(provider.UHW{Out: mmap.Bytes(&resp)}); err != nil {
		return err
	}
	// Poll puts the number into completions. There are none before: no peer knows the number.
	q.qp.recvCQ.Exclude()
	q.qp.num = resp.Dctn
	q.qp.recvCQ.Allow()
	q.Num = resp.Dctn
	return nil
}

// QPNum implements [provider.Numberer].
func (q *sendQueue) QPNum() uint32 {
	if q.Type != verbs.DCT {
		return 0
	}
	return q.qp.num
}
