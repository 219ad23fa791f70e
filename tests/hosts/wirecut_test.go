package hosts

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// crashReason is why the link of a peer with Linux 6.1 is not set down.
const crashReason = "read_reply of 6.1's rxe follows a null pointer if it has no route for its answer"

// TestWireCut sets the link down while all layers work: at the peer until all sessions have
// noticed, then on either side for a moment. It is the last test, by the name of the file: the
// kernel's connection manager does not recover on an rxe whose own link was down, and only
// booting the machine again helps, as tests hold the device open.
func TestWireCut(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for what gives up")
	}
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		crashes := d.device == labtest.RXE && strings.HasPrefix(p.run(t, 2, "uname", "-r"), "6.1.")
		t.Run("gone", func(t *testing.T) {
			if crashes {
				t.Skip(crashReason)
			}
			// TCP, below siw, would retry for a quarter of an hour.
			const retries = "net.ipv4.tcp_retries2="
			p.run(t, 1, "sysctl", "-w", retries+"5")
			defer p.run(t, 1, "sysctl", "-w", retries+"15")
			all, stop := startWork(t, p, d)
			began := time.Now()
			p.run(t, 2, "ip", "link", "set", d.wire, "down")
			for _, w := range all {
				if !w.layer.Datagrams {
					w.expectError(t, "the peer's link is down for good", began)
				}
			}
			stop()
			p.run(t, 2, "ip", "link", "set", d.wire, "up")
			testNewConns(t, p, d, 2, "once it is up again")
		})
		for _, side := range []struct {
			host int
			name string
		}{{2, "the peer's link is down for 2 s"}, {1, "the link is down for 2 s here"}} {
			t.Run(side.name, func(t *testing.T) {
				if crashes && side.host == 2 {
					t.Skip(crashReason)
				}
				all, stop := startWork(t, p, d)
				began := time.Now()
				p.run(t, side.host, "ip", "link", "set", d.wire, "down")
				time.Sleep(2 * time.Second) // the duration of the fault
				p.run(t, side.host, "ip", "link", "set", d.wire, "up")
				for _, w := range all {
					w.expectProgress(t, side.name, began)
				}
				stop()
				testNewConns(t, p, d, side.host, "after "+side.name)
			})
		}
	})
}

// startWork connects all layers except net/http, which would make new connections, and starts
// their work, which ends with stop.
func startWork(t *testing.T, p *peer, d driver) (all []*worker, stop func()) {
	t.Helper()
	for _, w := range dialAll(t, p, d) {
		if w.layer == workload.HTTP {
			w.s.Close()
			continue
		}
		all = append(all, w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), workTimeout)
	for _, w := range all {
		w.start(ctx, forever, 100_000)
	}
	waitUntilRunning(t, all)
	stopPoking := pokeEverySecond(all)
	return all, func() {
		cancel()
		for _, w := range all {
			<-w.done
		}
		stopPoking()
		closeAll(all)
	}
}

// expectProgress waits until a session has done two more rounds, or ended with an error of its
// layer, and records that. On rxe it may wait forever: the QP that cannot send fails, and
// so does the one that would notify the other side.
func (w *worker) expectProgress(t *testing.T, what string, began time.Time) {
	t.Helper()
	for was := w.rounds.Load(); w.rounds.Load() < was+2; {
		select {
		case <-w.done:
			w.expectError(t, what, began)
			return
		case <-time.After(10 * time.Millisecond):
		}
		if w.driver.device == labtest.RXE && time.Since(began) > 45*time.Second {
			record(t, what, w.layer, w.driver, "no answers any more, as a QP failed", time.Since(began))
			return
		}
	}
	record(t, what, w.layer, w.driver, "continues, data right", time.Since(began))
}

// testNewConns makes new connections of all layers, or records that the kernel of the host whose
// link was down cannot: the connection manager's QP on rxe fails with a message that it
// cannot send, and gets no receives any more.
func testNewConns(t *testing.T, p *peer, d driver, host int, what string) {
	t.Helper()
	began := time.Now()
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if err := workload.CM.Use(ctx, p.serve(t, workload.CM, d), 1, 1000); err != nil {
		if d.device != labtest.RXE {
			t.Errorf("new connection: %v", err)
			return
		}
		t.Log(err)
		record(t, what, workload.CM, d, "no new connection until the machine is booted again", time.Since(began))
		if host == 2 {
			p.crash(t)
		}
		return
	}
	for _, l := range d.layers() {
		if !l.Datagrams {
			testNewConn(t, p, what, l, d, time.Now())
		}
	}
}
