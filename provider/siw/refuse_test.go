//go:build linux

package siw

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
)

// TestPostRefused posts a request without an opcode, and a receive to a queue without
// room.
func TestPostRefused(t *testing.T) {
	h := newFakeDevice(t)
	cq, _, err := h.createCQ(8)
	if err != nil {
		t.Fatal(err)
	}
	defer cq.Release()
	sq, rq, err := h.createQP(cq, 8, 0, verbs.QPCap{MaxSendSGE: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer sq.Release()
	if n, err := sq.Post(make([]verbs.SendWR, 1)); n != 0 || !errors.Is(err, verbs.ErrNoOpcode) {
		t.Errorf("post send: %d, %v", n, err)
	}
	if n, err := rq.Post(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrNoRecvRoom) || errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("post recv: %d, %v", n, err)
	}
}
