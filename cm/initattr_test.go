//go:build linux

package cm_test

import (
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestInitAttr compares the attributes of the QPs on both sides with those that the connection
// manager returns, with and without RDMA READs of the peer.
func TestInitAttr(t *testing.T) {
	labtest.RequireBoth(t)
	ch, _, addr := newChannel(t, cm.DefaultTransport(), labtest.RoCE)
	ask := func(id *cm.ID) verbs.QPAttr {
		t.Helper()
		attr, mask, err := id.InitQPAttr(verbs.StateInit)
		if want := verbs.MaskState | verbs.MaskAccess | verbs.MaskPKeyIndex | verbs.MaskPort; err != nil || mask != want {
			t.Fatal(mask, err)
		}
		return attr
	}
	check := func(e *cm.Endpoint, want verbs.QPAttr) {
		t.Helper()
		got := labtest.Must(e.QP.Query())(t)
		if got.Access != want.Access || got.PKeyIndex != want.PKeyIndex || got.Port != want.Port {
			t.Errorf("access %v, P_Key index %d, port %d; the connection manager says %v, %d, %d",
				got.Access, got.PKeyIndex, got.Port, want.Access, want.PKeyIndex, want.Port)
		}
	}
	for _, depth := range []uint8{0, 1} {
		ctx := within(t, 20*time.Second)
		// One side is an endpoint; the other is made by hand, with depth READs.
		for _, dials := range []bool{true, false} {
			id := resolving(t, ch, addr)
			byHand := cm.ConnParam{InitiatorDepth: depth, ResponderResources: 1, RetryCount: 1, RNRRetryCount: 1}
			var asking *cm.ID
			var e *cm.Endpoint
			for done := false; !done; {
				ev := labtest.Must(ch.Next(ctx))(t)
				var err error
				switch ev.Type {
				case cm.AddrResolved:
					err = ev.ID.ResolveRoute(time.Second)
				case cm.RouteResolved:
					if dials {
						e, err = ch.Connect(ev, cm.Options{})
					} else {
						byHand.QPNum = labtest.InitQP(t, labtest.RoCE, id).Num()
						err = id.Connect(byHand)
					}
				case cm.ConnectRequest:
					asking = ev.NewID
					if !dials {
						says := ask(asking) // before Accept, which affects the answer
						if n := testing.AllocsPerRun(20, func() { ask(asking) }); n > 0 && !labtest.Soft && !labtest.Race {
							t.Errorf("the question allocates %v objects", n)
						}
						if e, err = ch.Accept(ev, cm.Options{}); err == nil {
							check(e, says)
							done = true
						}
						break
					}
					byHand.QPNum = labtest.InitQP(t, labtest.RoCE, asking).Num()
					err = asking.Accept(byHand)
				case cm.Established:
					check(ev.Endpoint, ask(id))
					done = true
				default:
					err = ev.Err()
				}
				if err != nil {
					t.Fatalf("%v: %v", ev.Type, err)
				}
			}
			e.Close()
			id.Close()
			asking.Close()
		}
	}
}
