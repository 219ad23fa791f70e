//go:build linux

package rsock_test

import (
	"io"
	"net"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// TestZone listens on a link-local address and dials it.
func TestZone(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if len(labtest.AddrsOf(t, device)) == 1 {
			t.Skip("needs IPv6")
		}
		zones := 0
		for _, a := range labtest.Must(cm.DeviceAddrs(labtest.Must(uverbs.Find(device))(t)))(t) {
			if a.Zone() == "" {
				continue
			}
			zones++
			l := labtest.Made((&rsock.ListenConfig{}).Listen(ctx, "rdma", net.JoinHostPort(a.String(), "0")))(t)
			client, server := labtest.DialAccept(t,
				func() (net.Conn, error) { return rsock.Dial("rdma6", l.Addr().String()) }, l.Accept)
			defer client.Close()
			defer server.Close()
			if _, err := io.WriteString(client, "hello"); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, 5)
			if _, err := io.ReadFull(server, got); err != nil || string(got) != "hello" {
				t.Errorf("%v: %q, %v", a, got, err)
			}
			if _, err := rsock.Dial("rdma4", l.Addr().String()); err == nil {
				t.Errorf("%v is IPv4", a)
			}
		}
		if zones == 0 {
			t.Error("there is no link-local address")
		}
	})
}
