package mlx5

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// clock is the page of the device's initialization segment with its timer (struct mlx5_init_seg,
// internal_timer_h and internal_timer_l), which is mapped when it is read first.
type clock struct {
	once   sync.Once
	err    error
	region *mmap.Region
	words  *[2]atomic.Uint32
}

// stamp sets the timestamp of a completion: 64 bits of the device's counter or, of its real-time
// clock, seconds in the upper half and nanoseconds in the lower one (ts_format of struct
// mlx5_ifc_qpc_bits; mlx5dv_ts_to_ns(3) is about the first).
// It is not inlined, so that Take keeps its registers for CQs without timestamps.
//
//go:noinline
func (q *completionQueue) stamp(cqe unsafe.Pointer, wc *verbs.WC) {
	wc.Timestamp = get64(unsafe.Add(cqe, cqeTimestamp))
	if q.stamps == verbs.TimestampRealTime {
		wc.Timestamp = wc.Timestamp>>32*1e9 + wc.Timestamp&(1<<32-1)
	}
}

// commandShift is where the number of a page of the device file has its command (MLX5_IB_MMAP_CMD_SHIFT).
const commandShift = 8

func (k *clock) open(c *context) error {
	size, off := os.Getpagesize(), c.resp.HcaCoreClockOffset
	if c.resp.CompMask&abi.MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET == 0 || off%8 != 0 || off > uint64(size-8) {
		return fmt.Errorf("the kernel shows no clock: %w", errors.ErrUnsupported)
	}
	// The kernel refuses to map it for writing, and on processors with pages of more than 4 KiB.
	r, err := mmap.MapReadOnly(c.dev.FD, int64(abi.MLX5_IB_MMAP_CORE_CLOCK<<commandShift)*int64(size), size)
	if err != nil {
		return fmt.Errorf("map the device's clock: %w", err)
	}
	k.region, k.words = r, (*[2]atomic.Uint32)(unsafe.Pointer(&r.Bytes()[off]))
	return nil
}

func (k *clock) close() { k.region.Close() }

// ReadClock implements [provider.Clock]. The upper half is read again, in case the lower one has
// wrapped around meanwhile.
func (c *context) ReadClock() (uint64, error) {
	k := &c.clock
	k.once.Do(func() { k.err = k.open(c) })
	if k.err != nil {
		return 0, k.err
	}
	for {
		high, low := k.words[0].Load(), k.words[1].Load()
		if high == k.words[0].Load() {
			return uint64(swap32(high))<<32 | uint64(swap32(low)), nil
		}
	}
}
