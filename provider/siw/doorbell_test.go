//go:build linux

package siw

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestPostDoorbellFails posts with a doorbell that fails: the requests complete as
// flushed. If the QP cannot be moved to the error state, the queue refuses all later
// requests.
func TestPostDoorbellFails(t *testing.T) {
	const size = 8
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(size)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Release()
	create := func() *sendQueue {
		sq, rq, err := h.createQP(cq, size, size, verbs.QPCap{MaxSendSGE: 2})
		if err != nil {
			t.Fatal(err)
		}
		rq.Release()
		bad := &provider.Device{FD: -1}
		sq.doorbell.Close()
		if sq.doorbell, err = provider.NewDoorbell(bad, 1, true); err != nil {
			t.Fatal(err)
		}
		return sq
	}
	wrs := []verbs.SendWR{{ID: 1, Opcode: verbs.OpSend}, {ID: 2, Opcode: verbs.OpSend}}

	sq := create()
	defer sq.Release()
	for i := range 2 {
		if n, err := sq.Post(wrs); n != 2 || err != nil {
			t.Errorf("post %d: %d, %v", i, n, err)
		}
		wcs := make([]verbs.WC, size)
		if n := provider.Poll(cq, wcs); n != 2 || wcs[0].ID != 1 || wcs[1].ID != 2 || wcs[1].Status != verbs.WCFlushErr {
			t.Errorf("post %d: completions %+v", i, wcs[:n])
		}
	}

	failed := create()
	defer failed.Release()
	failed.dev = &provider.Device{FD: -1}
	if n, err := failed.Post(wrs); n != 2 || err != nil {
		t.Errorf("QP not moved: %d, %v", n, err)
	}
	if n, err := failed.Post(wrs); n != 0 || !errors.Is(err, verbs.ErrQueueFailed) || !errors.Is(err, unix.EBADF) {
		t.Errorf("queue failed: %d, %v", n, err)
	}
}
