package rxe

import (
	"errors"
	"slices"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestLost loses a device with requests that the kernel has completed and others that it has not,
// at the end of the ring, and more than the CQ has room for.
func TestLost(t *testing.T) {
	var sq provider.SendQueue = fakeQueue(t, 8)
	var rq provider.RecvQueue = newRecvQueue(fakeQueue(t, 8).ring, &provider.QPInit{}, provider.QPInfo{QPNum: 17, Cap: verbs.QPCap{MaxRecvSGE: 1}}, &provider.Device{})
	rq.(*recvQueue).State = verbs.StateRTS
	var cq provider.CompletionQueue = newCompletionQueue(fakeQueue(t, 8).ring, provider.Notify{}, nil, false)
	var posted uint64
	post := func(n int, completed uint32) {
		t.Helper()
		for range n {
			_, serr := sq.Post([]verbs.SendWR{{ID: posted, Opcode: verbs.OpSend}})
			_, rerr := rq.Post([]verbs.RecvWR{{ID: posted}})
			if err := errors.Join(serr, rerr); err != nil {
				t.Fatal(err)
			}
			posted++
		}
		sq.(*sendQueue).ring.StoreConsumer(completed)
		rq.(*recvQueue).ring.StoreConsumer(completed)
	}
	post(7, 6)
	post(4, 7)
	var want []verbs.WC
	for _, op := range []verbs.WCOpcode{verbs.WCSend, verbs.WCRecv} {
		for id := range uint64(4) {
			want = append(want, verbs.WC{ID: 7 + id, Status: verbs.WCFlushErr, Opcode: op, QPNum: 17})
		}
	}
	flush := func() []verbs.WC {
		return append(sq.(provider.Flusher).Flush(), rq.(provider.Flusher).Flush()...)
	}
	flushed := flush()
	if !slices.Equal(flushed, want) {
		t.Errorf("%+v", flushed)
	}
	if again := flush(); len(again) != 0 {
		t.Errorf("again: %+v", again)
	}
	cq.Common().Detach(flushed)
	wcs := make([]verbs.WC, 10)
	if n := provider.Poll(cq, wcs); !slices.Equal(wcs[:n], want) {
		t.Errorf("%+v", wcs[:n])
	}
	for _, post := range []func() (int, error){
		func() (int, error) { return sq.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}) },
		func() (int, error) { return rq.Post([]verbs.RecvWR{{}}) },
	} {
		if n, err := post(); n != 0 || !errors.Is(err, verbs.ErrDeviceRemoved) || !errors.Is(err, verbs.ErrQueueFailed) {
			t.Error(n, err)
		}
	}
}

// TestLostAfterRelease loses a device whose queues are closed: their memory is gone.
func TestLostAfterRelease(t *testing.T) {
	sq, cq := fakeQueue(t, 8), newCompletionQueue(fakeQueue(t, 8).ring, provider.Notify{}, nil, false)
	if _, err := sq.Post([]verbs.SendWR{{Opcode: verbs.OpSend}}); err != nil {
		t.Fatal(err)
	}
	sq.Fail(errors.New("an earlier failure"))
	sq.Release()
	cq.Release()
	cq.Detach([]verbs.WC{{}})
	if wcs := sq.Flush(); len(wcs) != 0 {
		t.Errorf("%+v", wcs)
	}
}
