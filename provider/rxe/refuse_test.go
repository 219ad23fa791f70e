package rxe

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestPostNoOpcode posts a request without an opcode, the second of two.
func TestPostNoOpcode(t *testing.T) {
	q := fakeQueue(t, 8)
	sgl := []verbs.SGE{{Length: 8}}
	n, err := q.Post([]verbs.SendWR{{Opcode: verbs.OpSend, SGL: sgl}, {SGL: sgl, RemoteAddr: 1 << 30}})
	if n != 1 || !errors.Is(err, verbs.ErrNoOpcode) || q.ring.LoadProducer() != 1 {
		t.Errorf("posted %d: %v; producer index %d", n, err, q.ring.LoadProducer())
	}
}

// TestPostNoRoom posts to queues without room for requests.
func TestPostNoRoom(t *testing.T) {
	q := fakeQueue(t, 1)
	n, err := q.Post([]verbs.SendWR{{Opcode: verbs.OpSend}})
	if n != 0 || !errors.Is(err, verbs.ErrNoSendRoom) || errors.Is(err, verbs.ErrQueueFull) {
		t.Errorf("post send: %d, %v", n, err)
	}
	r := newRecvQueue(q.ring, &provider.QPInit{}, provider.QPInfo{}, &provider.Device{})
	r.State = verbs.StateRTS
	if n, err = r.Post(make([]verbs.RecvWR, 1)); n != 0 || !errors.Is(err, verbs.ErrNoRecvRoom) {
		t.Errorf("post recv: %d, %v", n, err)
	}
}
