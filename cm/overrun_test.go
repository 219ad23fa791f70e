//go:build linux

package cm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// srqConnection connects a client to a server whose receives are those of an SRQ. makeCQ makes the
// server's receive CQ.
func srqConnection(ctx context.Context, t *testing.T, device string, receives int, makeCQ func(*uverbs.Context) *uverbs.CQ) (client, server *cm.Endpoint) {
	t.Helper()
	dev := labtest.OpenDevice(t, device)
	pd := labtest.Made(dev.AllocPD())(t)
	srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: receives, MaxSGE: 1}))(t)
	mr := labtest.Made(pd.AllocMR(64, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
	for range receives {
		labtest.Must(srq.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 64)}}))(t)
	}
	client, server = labtest.Connect(ctx, t, labtest.AddrOf(device)+":0", cm.Options{Cap: verbs.QPCap{MaxSendWR: receives}},
		cm.Options{PD: pd, SRQ: srq, RecvCQ: makeCQ(dev)})
	labtest.Close(t, server)
	labtest.Close(t, client)
	return client, server
}

// TestSRQCompletions sends as many messages as an SRQ has receives before the receiver polls its
// CQ, which the endpoint has made.
func TestSRQCompletions(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		const messages = 300
		ctx := labtest.Within(t, 30*time.Second)
		client, server := srqConnection(ctx, t, device, messages, func(*uverbs.Context) *uverbs.CQ { return nil })
		var wcs [16]verbs.WC
		for sent, done := 0, 0; done < messages; {
			if sent < messages {
				sent += labtest.Must(client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("message")}))(t)
			}
			if sent == messages || sent-done >= 32 {
				n := labtest.Must(client.SendCQ.PollWait(ctx, wcs[:]))(t)
				for _, wc := range wcs[:n] {
					labtest.Check(t, wc.Err())
				}
				done += n
			}
		}
		for got := 0; got < messages; {
			n := labtest.Must(server.RecvCQ.PollWait(ctx, wcs[:]))(t)
			for _, wc := range wcs[:n] {
				labtest.Check(t, wc.Err())
			}
			got += n
		}
	})
}

// TestOverrunEnds sends more messages than fit in the receiver's CQ: its connection ends, which the
// peer sees.
func TestOverrunEnds(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		ctx := labtest.Within(t, 30*time.Second)
		client, server := srqConnection(ctx, t, device, 64, func(dev *uverbs.Context) *uverbs.CQ {
			return labtest.Made(dev.CreateCQ(uverbs.CQOptions{Depth: 4, Channel: labtest.Made(dev.CreateCompChannel())(t)}))(t)
		})
		for range 32 {
			labtest.Must(client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("message")}))(t)
		}
		for _, e := range []*cm.Endpoint{server, client} {
			select {
			case <-e.Done():
			case <-ctx.Done():
				t.Fatal("the connection does not end")
			}
		}
		err := server.Err()
		if server.PD.Context().Device().IWARP() && errors.Is(err, verbs.ErrDisconnected) { // siw ends the connection itself
			for err = nil; err == nil; {
				_, err = server.RecvCQ.PollWait(ctx, make([]verbs.WC, 8))
			}
		}
		if !errors.Is(err, verbs.ErrQueueFailed) {
			t.Errorf("the end of the connection: %v", err)
		}
	})
}

// TestRoomForCompletions checks that the CQs of an endpoint hold the completions of all that its
// queues take, to whatever the driver rounds these.
func TestRoomForCompletions(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureSRQ)
		for _, size := range []int{1, 2, 3, 7, 8, 63, 64, 100, 127, 128, 255, 256, 1000} {
			opt := cm.Options{Cap: verbs.QPCap{MaxSendWR: size, MaxRecvWR: size}}
			client, server := labtest.Connect(labtest.Within(t, 30*time.Second), t, labtest.AddrOf(device)+":0", opt, opt)
			labtest.Close(t, server)
			labtest.Close(t, client)
			if c := client.QP.Cap(); c.MaxSendWR > client.SendCQ.Cap() || c.MaxRecvWR > client.RecvCQ.Cap() {
				t.Errorf("size %d: queues of %d and %d, CQs of %d and %d", size, c.MaxSendWR, c.MaxRecvWR, client.SendCQ.Cap(), client.RecvCQ.Cap())
			}
		}
	})
}
