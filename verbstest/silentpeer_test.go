package verbstest_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestSilentPeer sends to a peer that is silent for 6 s, as a device in user space is whose process
// is stopped. By default the message fails before; with a RetryCount of 7 it arrives.
func TestSilentPeer(t *testing.T) {
	for name, tt := range map[string]struct {
		retries int
		want    verbs.WCStatus
	}{"default": {0, verbs.WCRetryExcErr}, "without end": {7, verbs.WCSuccess}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := verbstest.NewNetwork(verbstest.Options{})
				client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
				var mr *uverbs.MR
				l := labtest.Must((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
				defer l.Close()
				a, b := labtest.DialAccept(t, func() (*cm.Endpoint, error) {
					return (&cm.Dialer{Transport: client, Options: cm.Options{RetryCount: tt.retries}}).Dial(t.Context(), addr)
				}, func() (*cm.Endpoint, error) {
					return labtest.Must(l.Accept(t.Context()))(t).Accept(t.Context(), cm.Options{RetryCount: tt.retries, Setup: postReceives(&mr, 1)})
				})
				defer b.Close()
				defer a.Close()
				network.Partition(netip.MustParseAddr("10.0.0.2"))
				time.AfterFunc(6*time.Second, network.Heal)
				start := time.Now()
				if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")}); err != nil {
					t.Fatal(err)
				}
				if wc, err := a.SendCQ.Next(t.Context()); wc.Status != tt.want || (err == nil) != (tt.want == verbs.WCSuccess) {
					t.Errorf("%v, %v; want %v", wc.Status, err, tt.want)
				}
				if took := time.Since(start).Round(100 * time.Millisecond); tt.want != verbs.WCSuccess && took != 3800*time.Millisecond {
					t.Errorf("it failed after %v", took)
				}
			})
		})
	}
}
