package verbstest_test

import (
	"maps"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// TestTOS dials with a type of service, sends and disconnects: all packets of both sides have it,
// the connection manager's too.
func TestTOS(t *testing.T) {
	const tos = 104
	synctest.Test(t, func(t *testing.T) {
		kinds := map[string]bool{}
		network := verbstest.NewNetwork(verbstest.Options{Filter: func(p *verbstest.Packet) verbstest.Action {
			if p.TOS != tos {
				t.Errorf("TOS %d of %v", p.TOS, p)
			}
			kinds[p.Src.Addr().String()+" "+p.Kind.String()+p.CM] = true
			return verbstest.Action{}
		}})
		client, server := verbstest.NewHost(t, network, "10.0.0.1"), verbstest.NewHost(t, network, "10.0.0.2")
		var mr *uverbs.MR
		l := labtest.Must((&cm.ListenConfig{Transport: server}).Listen(t.Context(), addr))(t)
		defer l.Close()
		a, b := labtest.DialAccept(t, func() (*cm.Endpoint, error) {
			return (&cm.Dialer{Transport: client, TOS: tos}).Dial(t.Context(), addr)
		}, func() (*cm.Endpoint, error) {
			return labtest.Must(l.Accept(t.Context()))(t).Accept(t.Context(), cm.Options{Setup: postReceives(&mr, 1)})
		})
		labtest.Must(a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("hello")}))(t)
		labtest.Must(a.SendCQ.Next(t.Context()))(t)
		a.Disconnect()
		<-b.Done()
		labtest.Check(t, a.Close(), b.Close())
		synctest.Wait()
		_, err := (&cm.Dialer{Transport: client, TOS: tos}).Dial(t.Context(), "10.0.0.2:7472")
		if err == nil {
			t.Error("nobody listens there")
		}
		want := []string{
			"10.0.0.1 CMDREQ", "10.0.0.1 CMREQ", "10.0.0.1 CMRTU", "10.0.0.1 send",
			"10.0.0.2 CMDREP", "10.0.0.2 CMREJ", "10.0.0.2 CMREP", "10.0.0.2 ack",
		}
		if got := slices.Sorted(maps.Keys(kinds)); !slices.Equal(got, want) {
			t.Errorf("packets %q, want %q", got, want)
		}
	})
}
