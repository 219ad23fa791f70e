package verbstest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/verbstest"
)

// connected returns two ends of a connection of rsock between two hosts of a network, and the listener, at
// 10.0.0.1, by which the second was accepted.
func connected(t *testing.T, network *verbstest.Network, o rsock.Options) (dialed, accepted *rsock.Conn, l *rsock.Listener) {
	lc := rsock.ListenConfig{Transport: verbstest.NewHost(t, network, "10.0.0.1"), Options: o}
	l = labtest.Must(lc.Listen(t.Context(), "rdma", "10.0.0.1:80"))(t).(*rsock.Listener)
	t.Cleanup(func() { l.Close() })
	d := rsock.Dialer{Transport: verbstest.NewHost(t, network, "10.0.0.2"), Options: o}
	dialed = labtest.Must(d.DialContext(t.Context(), "rdma", "10.0.0.1:80"))(t).(*rsock.Conn)
	return dialed, labtest.Must(l.Accept())(t).(*rsock.Conn), l
}

// TestLostBeforeClose closes a dialed connection that has failed before: with an error, unless all
// that was written has arrived.
func TestLostBeforeClose(t *testing.T) {
	for _, arrives := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 20 * time.Millisecond}})
			c, peer, _ := connected(t, network, rsock.Options{})
			labtest.Must(c.Write([]byte("data")))(t)
			if arrives {
				time.Sleep(time.Second)
			}
			network.Remove(netip.MustParseAddr("10.0.0.1"))
			time.Sleep(time.Minute) // KeepAlive finds that the peer is dead
			c.Stats()
			if err := c.Close(); arrives && err != nil || !arrives && !errors.Is(err, syscall.ETIMEDOUT) {
				t.Errorf("Close, when the data arrives: %v: %v", arrives, err)
			}
			peer.SetLinger(0)
			peer.Close()
		})
	}
}

// TestCloseAfterBoth closes a connection whose directions have both been closed, and which the peer
// has ended since.
func TestCloseAfterBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := verbstest.NewNetwork(verbstest.Options{})
		c, peer, _ := connected(t, network, rsock.Options{})
		labtest.Must(c.Write([]byte("data")))(t)
		labtest.Check(t, c.CloseWrite(), c.CloseRead())
		if got, err := io.ReadAll(peer); string(got) != "data" || err != nil {
			t.Errorf("the peer has read %q, %v", got, err)
		}
		time.Sleep(time.Second) // until it has heard that nobody reads
		labtest.Check(t, peer.Close())
		time.Sleep(time.Second)
		labtest.Check(t, c.Close())
	})
}

// TestLinger closes connections of rsock to a peer that lives, or has died, on a slow network: how
// long Close waits is what was chosen for the listener, the dialer or the connection, and all is
// delivered if the peer lives.
func TestLinger(t *testing.T) {
	const dead = 3 * time.Second // at least, until the device gives up
	longest := math.MaxInt
	for _, r := range []struct {
		name   string
		dialed bool
		linger time.Duration
		set    *int
		waits  bool
	}{
		{"accepted", false, 0, nil, false},
		{"accepted, to wait", false, time.Minute, nil, true},
		{"accepted, to wait as long as possible", false, 0, &longest, true},
		{"dialed", true, 0, nil, true},
		{"dialed, in the background", true, -1, nil, false},
		{"dialed, to wait as long as possible", true, 0, &longest, true},
	} {
		for _, dies := range []bool{false, true} {
			name := r.name
			if dies {
				name += ", peer dead"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					network := verbstest.NewNetwork(verbstest.Options{Link: verbstest.Link{Delay: 20 * time.Millisecond}})
					c, peer, l := connected(t, network, rsock.Options{Linger: r.linger})
					victim := "10.0.0.1"
					if !r.dialed {
						c, peer, victim = peer, c, "10.0.0.2"
					}
					if r.set != nil {
						labtest.Check(t, c.SetLinger(*r.set))
					}
					data := labtest.RandomBytes(1, 100_000)
					labtest.Must(c.Write(data))(t)
					if dies {
						network.Remove(netip.MustParseAddr(victim))
					}
					least := 40 * time.Millisecond // to the peer and back
					if dies {
						least = dead
					}
					begin := time.Now()
					err := c.Close()
					if took := time.Since(begin); r.waits != (took >= least) || !r.waits && took > 0 {
						t.Errorf("Close took %v", took)
					}
					if (err != nil) != (dies && r.waits) {
						t.Errorf("Close: %v", err)
					}
					if !r.dialed && !dies {
						ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
						if err := l.Shutdown(ctx); r.waits == errors.Is(err, context.DeadlineExceeded) {
							t.Errorf("Shutdown for a millisecond: %v", err)
						}
						cancel()
						labtest.Check(t, l.Shutdown(t.Context()))
						if took := time.Since(begin); took < least {
							t.Errorf("Shutdown returned after %v", took)
						}
					}
					if got, err := io.ReadAll(peer); !dies && (err != nil || !bytes.Equal(got, data)) {
						t.Errorf("the peer has read %d bytes, or others: %v", len(got), err)
					}
					peer.SetLinger(0)
					peer.Close()
				})
			})
		}
	}
}
