package rsock

import (
	"io"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestCloseAfterPeer: a side whose data has all arrived closes without an error
// when the peer, who has closed meanwhile, had no use for what else it was told.
func TestCloseAfterPeer(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		l := labtest.Must(Listen("rdma", labtest.AddrOf(device)+":0"))(t)
		defer l.Close()
		a := labtest.Must(Dial("rdma", l.Addr().String()))(t).(*Conn)
		defer a.Close()
		b := labtest.Must(l.Accept())(t).(*Conn)
		defer b.Close()
		limit := time.Now().Add(60 * time.Second)
		a.SetDeadline(limit)
		b.SetDeadline(limit)
		if _, err := a.Write([]byte("all there is")); err != nil {
			t.Fatal(err)
		}
		if err := a.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(b); err != nil || string(got) != "all there is" {
			t.Fatalf("%q, %v", got, err)
		}
		for a.mu.Lock(); !a.quiet(); a.mu.Lock() {
			a.mu.Unlock()
			if time.Now().After(limit) {
				t.Fatal("SHUTDOWN is not acknowledged")
			}
			time.Sleep(time.Millisecond)
		}
		// a sees that no more comes, and nothing of b's Close; and what it said of
		// space meanwhile comes too late.
		err := b.CloseWrite()
		for err == nil && !a.eof && time.Now().Before(limit) {
			a.progress()
		}
		if err == nil {
			err = b.Close()
		}
		a.postCtrl(opSGL|message(a.in.limit), nil)
		a.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}
