package rxe

import (
	"errors"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestPostDoorbellFails posts with a doorbell that fails: requests in the ring count as
// posted. If the QP cannot be moved to the error state either, the queue refuses all
// later requests.
func TestPostDoorbellFails(t *testing.T) {
	q := fakeQueue(t, 8)
	bad := &provider.Device{FD: -1}
	q.doorbell.Close()
	var err error
	if q.doorbell, err = provider.NewDoorbell(bad, 1, false); err != nil {
		t.Fatal(err)
	}
	post := func(what string, posts, want int, wantErr error) {
		t.Helper()
		n, err := q.Post(slices.Repeat([]verbs.SendWR{{Opcode: verbs.OpSend}}, posts))
		if n != want || !errors.Is(err, wantErr) {
			t.Errorf("%s: posted %d: %v; want %d: %v", what, n, err, want, wantErr)
		}
		if got := int(q.ring.LoadProducer()); got != int(q.prod) {
			t.Errorf("%s: producer index %d, not %d", what, got, q.prod)
		}
	}
	post("QP moved to ERR", 2, 2, nil)
	post("QP moved to ERR, queue full", 6, 5, verbs.ErrQueueFull)
	q.ring.StoreConsumer(q.prod)
	q.dev = bad
	post("QP not moved", 1, 1, nil)
	post("queue failed", 1, 0, verbs.ErrQueueFailed)
	q.Stop(true)
	q.Stop(false)
	post("QP not destroyed", 1, 0, syscall.EBADF)
}

func TestSendsInDoorbell(t *testing.T) {
	for release, want := range map[string]bool{
		"5.14.0-503.el9.x86_64": true, "6.1.0-49-amd64": true, "6.9.12": true, "": true,
		"6.10.0-rc1": false, "6.12.57+deb12-amd64": false, "7.3.4": false, "10.0": false,
	} {
		if got := sendsInDoorbell(release); got != want {
			t.Errorf("Linux %q: %v", release, got)
		}
	}
}
