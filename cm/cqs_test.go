//go:build linux

package cm_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestCQsAgain makes connections one after the other that reuse the CQs of closed ones:
// a reused CQ is empty, and the closed endpoint cannot use it any more.
func TestCQsAgain(t *testing.T) {
	t.Run("polled", func(t *testing.T) { testCQsAgain(t, true) })
	t.Run("events", func(t *testing.T) { testCQsAgain(t, false) })
}

func testCQsAgain(t *testing.T, polled bool) {
	labtest.Each(t, func(t *testing.T, device string) {
		const rounds, messages = 12, 4
		var gone []*uverbs.CQ
		cqs := "kernel cq of " + device
		before := labtest.SettledInventory(t)[cqs]
		for round := range rounds {
			client, server := messageRound(t, device, polled, uint64(round*100), messages)
			if n := labtest.Inventory(t)[cqs] - before; n != 4 {
				t.Errorf("round %d: the kernel has %d CQs more, not two for each end", round, n)
			}
			for _, e := range []*cm.Endpoint{client, server} {
				if _, err := bridge.RecycleCQ(e.SendCQ); !errors.Is(err, verbs.ErrInUse) {
					t.Errorf("recycling a CQ with a QP: %v, want %v", err, verbs.ErrInUse)
				}
				gone = append(gone, e.SendCQ, e.RecvCQ)
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		client, server := messageRound(t, device, polled, rounds*100, messages)
		for _, cq := range gone {
			if n := cq.Poll(make([]verbs.WC, 1)); n != 0 {
				t.Errorf("a CQ of a connection that is gone has completions")
			}
			if _, err := bridge.RecycleCQ(cq); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("recycling a CQ of a connection that is gone: %v, want %v", err, verbs.ErrClosed)
			}
			if err := cq.Close(); err != nil {
				t.Error(err)
			}
		}
		expectIDs(t, client.SendCQ, rounds*100, messages)
		client.Close()
		server.Close()
	})
}

// TestCompChannelsAgain makes connections one after the other that reuse the completion channels of
// closed ones, with events that nobody has taken, and a request for one. They do not end a wait of
// the next connection.
func TestCompChannelsAgain(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		const rounds = 6
		for round := range rounds {
			ctx := within(t, 20*time.Second)
			client, server := labtest.Connect(ctx, t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{Setup: func(e *cm.Endpoint) error {
				_, err := e.QP.PostRecv(verbs.RecvWR{}, verbs.RecvWR{})
				return err
			}})
			cq := client.SendCQ
			if err := cq.Wait(within(t, 10*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("round %d: waiting before there is an event: %v", round, err)
			}
			send := func(id uint64) {
				t.Helper()
				labtest.Check(t, cq.Arm(false))
				if _, err := client.QP.PostSend(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
					t.Fatal(err)
				}
			}
			send(1)
			labtest.Check(t, cq.Wait(ctx))
			expectIDs(t, cq, 1, 1)
			send(2)
			expectIDs(t, cq, 2, 1)
			if round%2 == 0 {
				labtest.Check(t, cq.Arm(false))
			}
			last := round == rounds-1
			if last && cq.Channel() == nil {
				t.Error("the CQ has no channel")
			}
			labtest.Check(t, errors.Join(client.Close(), server.Close()))
			if err := cq.Wait(ctx); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("waiting for a closed CQ: %v", err)
			}
			// A channel is not used again if the program has it.
			if again := cq.Channel() == nil; again == last {
				t.Errorf("round %d: the channel is used again: %t", round, again)
			}
		}
	})
}

// TestCompChannelsAfterWaits closes connections while goroutines wait for their CQs. The waits end, and
// take no events of the next connections.
func TestCompChannelsAfterWaits(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		rounds := 50
		if testing.Short() {
			rounds = 10
		}
		var waits sync.WaitGroup
		for range rounds {
			ctx := within(t, 20*time.Second)
			client, server := labtest.Connect(ctx, t, labtest.AddrOf(device)+":0", cm.Options{}, cm.Options{Setup: func(e *cm.Endpoint) error {
				_, err := e.QP.PostRecv(verbs.RecvWR{})
				return err
			}})
			received := make(chan struct{})
			waits.Go(func() {
				wc, err := server.RecvCQ.Next(ctx)
				if err != nil || wc.Opcode != verbs.WCRecv {
					t.Errorf("%+v, %v", wc, err)
				}
				close(received)
				if _, err := server.RecvCQ.Next(ctx); !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("waiting for a CQ that is closed: %v", err)
				}
			})
			waits.Go(func() {
				if err := client.RecvCQ.Wait(ctx); !errors.Is(err, verbs.ErrClosed) {
					t.Errorf("waiting for a CQ that is closed: %v", err)
				}
			})
			if _, err := client.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}); err != nil {
				t.Fatal(err)
			}
			if _, err := client.SendCQ.Next(ctx); err != nil {
				t.Fatal(err)
			}
			<-received
			labtest.Check(t, errors.Join(client.Close(), server.Close()))
		}
		waits.Wait()
	})
}

// messageRound connects, sends messages numbered from first, and polls the completions
// of all but the last at the server. It leaves the client's completions in the CQ.
func messageRound(t *testing.T, device string, polled bool, first uint64, messages int) (client, server *cm.Endpoint) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	size := verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 16}
	client, server = labtest.Connect(ctx, t, labtest.AddrOf(device)+":0", cm.Options{Cap: size, Polled: polled}, cm.Options{Cap: size, Polled: polled, Setup: func(e *cm.Endpoint) error {
		mr, err := e.AllocMR(64, verbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		for i := range messages {
			if _, err := e.QP.PostRecv(verbs.RecvWR{ID: first + uint64(i), SGL: []verbs.SGE{mr.SGE(0, 64)}}); err != nil {
				return err
			}
		}
		return nil
	}})
	for _, cq := range []*uverbs.CQ{client.SendCQ, client.RecvCQ, server.SendCQ, server.RecvCQ} {
		if n := cq.Poll(make([]verbs.WC, 1)); n != 0 {
			t.Fatal("a new connection has completions")
		}
	}
	for i := range messages {
		wr := verbs.SendWR{ID: first + uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte("message")}
		if _, err := client.QP.PostSend(wr); err != nil {
			t.Fatal(err)
		}
	}
	expectIDs(t, server.RecvCQ, first, messages-1)
	return client, server
}

// expectIDs polls completions numbered from first.
func expectIDs(t *testing.T, cq *uverbs.CQ, first uint64, n int) {
	t.Helper()
	for id := first; id < first+uint64(n); id++ {
		var wc [1]verbs.WC
		labtest.Until(t, fmt.Sprintf("the completion of request %d", id), func() bool { return cq.Poll(wc[:]) == 1 })
		if wc[0].ID != id || wc[0].Err() != nil {
			t.Fatalf("%+v, want request %d", wc[0], id)
		}
	}
}
