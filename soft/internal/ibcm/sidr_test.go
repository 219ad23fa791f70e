package ibcm

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/roce"
)

// TestResolve resolves the datagram QP of a service.
func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name   string
		server *server
		want   roce.SIDRStatus
	}{
		{"answered", &server{answer: func(s *endpoint, e *Event) error {
			if !bytes.HasPrefix(e.PrivateData, []byte("who?")) || len(e.PrivateData) != roce.SIDRREQPrivateData || e.Resolution.ServiceID != service {
				return errors.New("wrong request")
			}
			return s.Answer(&roce.SIDRREP{QPN: 0x20, QKey: 0x1234, PrivateData: []byte("me")})
		}}, roce.SIDRSuccess},
		{"refused", &server{answer: func(s *endpoint, e *Event) error { return errors.New("no") }}, roce.SIDRReject},
		{"no listener", nil, roce.SIDRUnsupported},
	} {
		t.Run(test.name, func(t *testing.T) {
			world(t, 1, func(t *testing.T, n *network, a, b *host) {
				n.duplicate = 0.5
				if test.server != nil {
					b.listen(t, test.server)
				}
				c := a.newEndpoint(t)
				c.must(func() error {
					return c.Resolve(a.path(b), time.Second, 15, &roce.SIDRREQ{ServiceID: service, PrivateData: []byte("who?")})
				})
				c.expect(Resolved)
				e := c.last()
				if e.Answer.Status != test.want || len(e.PrivateData) != roce.SIDRREPPrivateData {
					t.Errorf("%+v", e.Answer)
				}
				if test.want == roce.SIDRSuccess && (e.Answer.QPN != 0x20 || e.Answer.QKey != 0x1234 || !bytes.HasPrefix(e.PrivateData, []byte("me"))) {
					t.Errorf("%+v, %q", e.Answer, e.PrivateData)
				}
				c.destroy()
				checkEmpty(t, a.manager)
				if n := len(b.manager.requests); n != 0 {
					t.Errorf("%d requests are left", n)
				}
			})
		})
	}
}

// TestSlowResolve answers late: repeated requests are not delivered again.
func TestSlowResolve(t *testing.T) {
	world(t, 1, func(t *testing.T, n *network, a, b *host) {
		s := &server{}
		b.listen(t, s)
		c := a.newEndpoint(t)
		c.must(func() error {
			return c.Resolve(a.path(b), time.Second, 15, &roce.SIDRREQ{ServiceID: service})
		})
		wait(5500 * time.Millisecond)
		if len(s.endpoints) != 1 || n.count(roce.AttrSIDRREQ) != 6 {
			t.Errorf("%d requests, messages %v", len(s.endpoints), n.sent)
		}
		p := s.endpoints[0]
		p.must(func() error { return p.Answer(&roce.SIDRREP{QPN: 1, QKey: 2}) })
		c.expect(Resolved)
	})
}
