package verbstest_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/rmsg"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/uverbs"
)

// TestMaxConnsOfLayers dials twice a listener that takes one connection, by each layer.
func TestMaxConnsOfLayers(t *testing.T) {
	const addr = "10.0.0.2:7472"
	for name, listen := range map[string]func(*testing.T, *machines) (dial, accept func() (interface{ Close() error }, error)){
		"rsock": func(t *testing.T, m *machines) (dial, accept func() (interface{ Close() error }, error)) {
			l := labtest.Made((&rsock.ListenConfig{MaxConns: 1, Transport: m.server}).Listen(t.Context(), "rdma", addr))(t)
			return func() (interface{ Close() error }, error) {
				return (&rsock.Dialer{Transport: m.client}).Dial("rdma", addr)
			}, func() (interface{ Close() error }, error) { return l.Accept() }
		},
		"rmsg": func(t *testing.T, m *machines) (dial, accept func() (interface{ Close() error }, error)) {
			l := labtest.Made((&rmsg.ListenConfig{MaxConns: 1, Options: rmsg.Options{Transport: m.server}}).Listen(t.Context(), addr))(t)
			return func() (interface{ Close() error }, error) {
				return (&rmsg.Dialer{Options: rmsg.Options{Transport: m.client}}).Dial(t.Context(), addr)
			}, func() (interface{ Close() error }, error) { return l.Accept(t.Context()) }
		},
		"rconn": func(t *testing.T, m *machines) (dial, accept func() (interface{ Close() error }, error)) {
			l := labtest.Made((&rconn.ListenConfig{MaxConns: 1, Transport: m.server}).Listen(t.Context(), addr))(t)
			return func() (interface{ Close() error }, error) {
					return (&rconn.Dialer{Transport: m.client}).Dial(t.Context(), addr)
				}, func() (interface{ Close() error }, error) {
					r, err := l.Accept(t.Context())
					if err != nil {
						return nil, err
					}
					return r.Accept(t.Context(), rconn.Options{})
				}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachines(t)
			dial, accept := listen(t, m)
			c, s := labtest.DialAccept(t, dial, accept)
			labtest.Close(t, s)
			labtest.Close(t, c)
			go accept() // until the listener is closed
			if c, err := dial(); err == nil || !strings.Contains(err.Error(), "as many connections as it takes") {
				t.Errorf("one too many: %v, %v", c, err)
			}
		})
	}
}

// TestRegionsOutlive keeps a region in the PD of endpoints that share one: the device stays open,
// and is closed some time after the region.
func TestRegionsOutlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachines(t)
		client, server := m.connect(t, cm.Dialer{Options: cm.Options{SharePD: true}})
		mr := labtest.Must(client.PD.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
		labtest.Check(t, client.Close(), server.Close())
		time.Sleep(time.Hour)
		if n := m.client.Stats().Devices; n != 1 {
			t.Errorf("%d devices are open with a region", n)
		}
		labtest.Check(t, mr.Close())
		time.Sleep(2 * time.Minute)
		if n := m.client.Stats().Devices; n != 0 {
			t.Errorf("%d devices are open without", n)
		}
	})
}
