//go:build linux

package cm_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestByHand connects QPs that the program has made, with IDs only, as programs on
// librdmacm can.
func TestByHand(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		ctx := within(t, 20*time.Second)
		dev := labtest.OpenDevice(t, device)
		l := labtest.NewID(t, 0)
		if err := l.Bind(netip.MustParseAddrPort(labtest.AddrOf(device) + ":0")); err != nil {
			t.Fatal(err)
		}
		if err := l.Listen(1); err != nil {
			t.Fatal(err)
		}
		client := labtest.NewID(t, 0)
		dst := labtest.Must(l.Route())(t).Local
		if err := client.ResolveAddr(netip.AddrPort{}, dst, time.Second); err != nil {
			t.Fatal(err)
		}
		labtest.Expect(t, client, cm.AddrResolved)
		if err := client.ResolveRoute(time.Second); err != nil {
			t.Fatal(err)
		}
		labtest.Expect(t, client, cm.RouteResolved)

		a, b := newManualQP(t, dev), newManualQP(t, dev)
		a.modify(t, client, verbs.StateInit)
		if err := client.Connect(cm.ConnParam{QPNum: a.qp.Num(), RetryCount: 7, RNRRetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		server := labtest.Expect(t, l, cm.ConnectRequest).NewID
		labtest.Close(t, server)
		b.modify(t, server, verbs.StateInit)
		if _, err := b.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.mr.SGE(0, 100)}}); err != nil {
			t.Fatal(err)
		}
		iwarp := labtest.IWARP(t, device)
		if !iwarp {
			b.modify(t, server, verbs.StateRTR)
			b.modify(t, server, verbs.StateRTS)
		}
		if err := server.Accept(cm.ConnParam{QPNum: b.qp.Num(), RNRRetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		if iwarp {
			labtest.Expect(t, client, cm.Established)
		} else {
			labtest.Expect(t, client, cm.ConnectResponse)
			a.modify(t, client, verbs.StateInit) // again, now with the access flags
			a.modify(t, client, verbs.StateRTR)
			a.modify(t, client, verbs.StateRTS)
			if err := client.Establish(); err != nil {
				t.Fatal(err)
			}
		}
		labtest.Expect(t, server, cm.Established)

		wr := []verbs.SendWR{{Opcode: verbs.OpSend, Inline: []byte("by hand")}}
		if _, err := a.qp.PostSend(wr...); err != nil {
			t.Fatal(err)
		}
		var wc [1]verbs.WC
		if _, err := b.cq.PollWait(ctx, wc[:]); err != nil || wc[0].Err() != nil || string(b.mr.Bytes()[:wc[0].ByteLen]) != "by hand" {
			t.Errorf("%q: %v, %v", b.mr.Bytes()[:10], err, wc[0].Err())
		}
		if err := client.Disconnect(); err != nil {
			t.Error(err)
		}
		labtest.Expect(t, server, cm.Disconnected)
	})
}

type manualQP struct {
	cq *uverbs.CQ
	qp *uverbs.QP
	mr *uverbs.MR
}

func newManualQP(t *testing.T, dev *uverbs.Context) *manualQP {
	t.Helper()
	pd := labtest.Made(dev.AllocPD())(t)
	mr := labtest.Made(pd.AllocMR(100, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	qp := labtest.Made(pd.CreateQP(uverbs.QPOptions{
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16},
	}))(t)
	return &manualQP{qp.SendCQ(), qp, mr}
}

// modify moves the QP to a state with the attributes from its ID.
func (h *manualQP) modify(t *testing.T, id *cm.ID, state verbs.QPState) {
	t.Helper()
	attr, mask, err := id.InitQPAttr(state)
	if err == nil {
		err = h.qp.Modify(attr, mask)
	}
	if err != nil {
		t.Fatalf("%v: %v", state, err)
	}
}
