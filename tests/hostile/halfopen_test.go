package hostile

import (
	"flag"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

var halfOpen = flag.Int("halfopen", 40, "how many handshakes are begun and never ended, on RoCE")

// startHandshakes starts n handshakes with a server, with IDs that never answer. accepted returns
// how many the server has accepted, and end closes the IDs.
func startHandshakes(t *testing.T, s *server, private []byte, n int) (accepted func() int, end func()) {
	t.Helper()
	ctx := labtest.Within(t, waitTimeout)
	ch := labtest.Must(cm.DefaultTransport().NewChannel())(t)
	ids := make([]*cm.ID, n)
	step := func(do func(id *cm.ID) error, then cm.EventType) {
		for _, id := range ids {
			labtest.Check(t, do(id))
		}
		for range ids {
			if e, err := ch.Next(ctx); err != nil || e.Type != then {
				t.Fatalf("%v, %v in place of %v", e.Type, err, then)
			}
		}
	}
	for i := range ids {
		ids[i] = labtest.Must(ch.NewID(0))(t)
	}
	to := netip.MustParseAddrPort(s.addr)
	step(func(id *cm.ID) error { return id.ResolveAddr(netip.AddrPort{}, to, 5*time.Second) }, cm.AddrResolved)
	step(func(id *cm.ID) error { return id.ResolveRoute(5 * time.Second) }, cm.RouteResolved)
	for i, id := range ids {
		// The QPs do not exist: the handshake never uses them. With the same QP
		// for all the kernel would take the later requests for repetitions.
		labtest.Check(t, id.Connect(cm.ConnParam{QPNum: 0x100000 + nextQP + uint32(i), PrivateData: private, RetryCount: 7}))
	}
	nextQP += uint32(n)
	replies := 0
	accepted = func() int {
		for {
			switch e, ok, err := ch.TryNext(); {
			case err != nil:
				t.Fatal(err)
			case !ok:
				return replies
			case e.Type == cm.ConnectResponse:
				replies++
			}
		}
	}
	return accepted, func() {
		for _, id := range ids {
			id.Close()
		}
		ch.Close()
	}
}

var nextQP uint32

// TestHalfOpen checks that handshakes that are never completed do not affect established
// connections, take no more resources than the listener's options allow, and time out.
func TestHalfOpen(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		for _, l := range layers {
			if labtest.IWARP(t, device) { // which makes no connection for a QP that does not exist
				testHalfOpenTCP(t, l, device)
				continue
			}
			withServer(t, l, device, time.Second, func(t *testing.T, s *server, g *goodClient) {
				before := currentUsage(t, device)
				accepted, end := startHandshakes(t, s, l.hello, *halfOpen)
				most := before
				began := time.Now()
				observed := func() bool {
					took := time.Since(began)
					return took > time.Second && accepted() > 0 || took > waitTimeout
				}
				for newcomer, done := dialDuringAttack(t, l, s), false; !done || !observed(); {
					now := currentUsage(t, device)
					most = usage{max(most.heap, now.heap), max(most.rss, now.rss), max(most.mrs, now.mrs)}
					select {
					case err := <-newcomer:
						if done = true; err != nil {
							t.Errorf("a good client that comes meanwhile: %v", err)
						}
					case <-time.After(20 * time.Millisecond):
					}
					g.checkServed(t)
				}
				t.Logf("%d handshakes, %d accepted: at most %+d KiB of heap, %+d KiB of RSS, %+d MRs; a good client was in after %v",
					*halfOpen, accepted(), (most.heap-before.heap)>>10, (most.rss-before.rss)>>10, most.mrs-before.mrs, time.Since(began).Round(time.Millisecond))
				if n := l.pending(*halfOpen) + maxConnMRs; most.mrs-before.mrs > n {
					t.Errorf("%d MRs, more than %d", most.mrs-before.mrs, n)
				} else if accepted() == 0 {
					t.Error("no handshake was pending")
				}
				before.checkGrowth(t, device, usage{heap: 8 << 20, rss: 64 << 20, mrs: 0})
				end()
			})
		}
	})
}

// maxConnMRs is how many MRs a good connection has at most, on both sides.
const maxConnMRs = 8

// dialDuringAttack dials during the attack, and returns the result.
func dialDuringAttack(t *testing.T, l layer, s *server) <-chan error {
	done := make(chan error, 1)
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		err := l.echoOnce(s.addr)
		for deadline := time.Now().Add(waitTimeout); err != nil && time.Now().Before(deadline); {
			err = l.echoOnce(s.addr) // it was too slow for the listener
		}
		done <- err
	})
	return done
}

// testHalfOpenTCP runs the test for iWARP, where the kernel passes no request on before it is
// complete.
func testHalfOpenTCP(t *testing.T, l layer, device string) {
	withServer(t, l, device, time.Second, func(t *testing.T, s *server, g *goodClient) {
		before := currentUsage(t, device)
		begun := make([]net.Conn, *halfOpen)
		for i := range begun {
			begun[i] = labtest.Must(net.Dial("tcp", s.addr))(t)
			defer begun[i].Close()
			begun[i].Write(append([]byte("MPA ID Req Frame"), 0x40, 1, 0, 255)) // and 255 bytes that are never sent
		}
		came := func(when string) {
			t.Helper()
			if err := <-dialDuringAttack(t, l, s); err != nil {
				t.Errorf("a good client that comes %s: %v", when, err)
			}
			g.checkServed(t)
		}
		came("meanwhile")
		before.checkGrowth(t, device, usage{heap: 8 << 20, rss: 64 << 20, mrs: 4})
		for _, c := range begun {
			c.Close()
		}
		came("after they have broken off")
	})
}
