package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// On each of its connections mckey sends or receives mckeyMessages messages of mckeySize
// bytes.
const mckeyMessages, mckeySize = 10, 100

// member joins a group from a local address, with queues for the messages of mckey.
func member(ctx context.Context, t *testing.T, local, group string, sendOnly bool) (*cm.Endpoint, *cm.Datagrams, error) {
	t.Helper()
	var dg *cm.Datagrams
	d := cm.Dialer{LocalAddr: netip.AddrPortFrom(netip.MustParseAddr(local), 0), Options: cm.Options{
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 2 * mckeyMessages, MaxSendSGE: 1, MaxRecvSGE: 1},
		Setup: func(e *cm.Endpoint) (err error) {
			dg, err = cm.NewDatagrams(e, mckeySize)
			return err
		},
	}}
	m, err := d.Join(ctx, group, sendOnly)
	if err == nil {
		labtest.Close(t, m)
	}
	return m, dg, err
}

// TestMckey sends to groups that rdma-core's mckey has joined and receives from them.
func TestMckey(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		if labtest.IWARP(t, device) {
			if _, _, err := member(timeLimit(t), t, labtest.AddrOf(device), "239.1.2.3", false); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("iWARP has no multicast: %v", err)
			}
			return
		}
		// C's programs sleep for 3 s after they have joined.
		t.Run("all at once", func(t *testing.T) {
			for _, r := range []struct {
				name, group string
				sendOnly    bool
				test        func(t *testing.T, addr, group string, sendOnly bool)
			}{
				{"C sender", "239.1.2.4", false, testMckeySender},
				{"C sender only", "239.1.2.5", true, testMckeySender},
				{"C receiver", "239.1.2.6", false, testMckeyReceiver},
				{"C receiver of a sender only", "239.1.2.7", true, testMckeyReceiver},
			} {
				t.Run(r.name, func(t *testing.T) {
					t.Parallel()
					r.test(t, labtest.AddrOf(device), r.group, r.sendOnly)
				})
			}
		})
	})
}

// testMckeySender receives messages of C in two members. C leaves as soon as it has posted
// its messages, and those not sent by then are lost. With many connections most are sent.
func testMckeySender(t *testing.T, addr, group string, sendOnly bool) {
	ctx := timeLimit(t)
	errs := make(chan error, 2)
	for range cap(errs) {
		_, dg, err := member(ctx, t, addr, group, false)
		if err != nil {
			t.Fatal(err)
		}
		go func() { errs <- mckeyReceive(ctx, dg) }()
	}
	args := []string{"-s", "-m", group, "-b", addr, "-c", "20"}
	if sendOnly {
		args = append(args, "-o")
	}
	sender := start(t, "mckey", args...)
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	sender.Wait()
}

// mckeyReceive receives the messages of one connection, whose immediates are the
// numbers of their senders' QPs.
func mckeyReceive(ctx context.Context, dg *cm.Datagrams) error {
	buf := make([]byte, mckeySize)
	for i := range mckeyMessages {
		m, err := dg.Recv(ctx, buf)
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if m.Len != mckeySize || !m.WithImm || m.Imm != m.From.QPNum {
			return fmt.Errorf("message %d: %+v", i, m)
		}
	}
	return nil
}

// testMckeyReceiver sends until C has received all its messages.
func testMckeyReceiver(t *testing.T, addr, group string, sendOnly bool) {
	ctx := timeLimit(t)
	receiver := start(t, "mckey", "-m", group, "-b", addr, "-c", "2")
	m, dg, err := member(ctx, t, addr, group, sendOnly)
	if err != nil {
		t.Fatal(err)
	}
	if m.Peer.QPNum != 0xffffff {
		t.Errorf("group %+v", m.Peer)
	}
	for {
		labtest.Check(t, dg.SendImm(ctx, m.Peer, make([]byte, mckeySize), m.QP.Num()))
		select {
		case <-receiver.Done:
			receiver.Wait()
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}
