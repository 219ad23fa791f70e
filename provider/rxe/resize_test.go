package rxe

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/provider"
)

// TestResizeMapFails resizes queues whose new memory cannot be mapped.
func TestResizeMapFails(t *testing.T) {
	q := fakeQueue(t, 8)
	cq := newCompletionQueue(q.ring, provider.Notify{}, &provider.Device{FD: -1}, false)
	resized := func(_ int, u provider.UHW) error {
		copy(u.Out, mmap.Bytes(&abi.RxeResizeCqResp{Mi: abi.Mminfo{Size: 4096}}))
		return nil
	}
	for _, err := range []error{cq.Resize(16, resized), cq.Resize(16, resized), cq.Arm(false)} {
		if !errors.Is(err, verbs.ErrQueueFailed) || !errors.Is(err, syscall.EBADF) {
			t.Errorf("resize and arm of the CQ: %v", err)
		}
	}
	cq.ring.StoreProducer(1)
	if n := provider.Poll(cq, make([]verbs.WC, 1)); n != 0 {
		t.Errorf("polled %d completions of a failed CQ", n)
	}

	if err := cq.Recycle().Arm(false); !errors.Is(err, verbs.ErrQueueFailed) {
		t.Errorf("arm of the recycled CQ: %v", err)
	}

	srq := newSRQ(q.ring, 1, provider.SRQInfo{}, &provider.Device{FD: -1})
	err := srq.Resize(16, func(_ int, u provider.UHW) error {
		cmd := (*abi.RxeModifySrqCmd)(unsafe.Pointer(unsafe.SliceData(u.In)))
		**(**abi.Mminfo)(unsafe.Pointer(&cmd.MmapInfoAddr)) = abi.Mminfo{Size: 4096}
		return nil
	})
	if !errors.Is(err, verbs.ErrQueueFailed) {
		t.Errorf("resize of the SRQ: %v", err)
	}
	if n, err := srq.Post(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrQueueFailed) {
		t.Errorf("post to the SRQ: %d, %v", n, err)
	}
}
