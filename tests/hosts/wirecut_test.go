package hosts

import (
	"context"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// TestWireCut sets the link down while all layers work: at the peer until all sessions have
// noticed, then on either side for a moment. It is the last test, by the name of the file: the
// kernel's connection manager does not recover on an rxe whose own link was down, and only
// booting the machine again helps, as tests hold the device open.
func TestWireCut(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for what gives up")
	}
	eachDriver(t, func(t *testing.T, d driver, p *peer) {
		t.Run("gone", func(t *testing.T) {
			// TCP, below siw, would retry for a quarter of an hour.
			const retries = "net.ipv4.tcp_retries2="
			p.run(t, 1, "sysctl", "-w", retries+"5")
			defer p.run(t, 1, "sysctl", "-w", retries+"15")
			all, stop := atWork(t, p, d)
			began := time.Now()
			p.run(t, 2, "ip", "link", "set", d.wire, "down")
			for _, o := range all {
				if !o.layer.Datagrams {
					o.expect(t, "the peer's link is down for good", began)
				}
			}
			stop()
			p.run(t, 2, "ip", "link", "set", d.wire, "up")
			anew(t, p, d, 2, "once it is up again")
		})
		for _, side := range []struct {
			host int
			name string
		}{{2, "the peer's link is down for 2 s"}, {1, "the link is down for 2 s here"}} {
			t.Run(side.name, func(t *testing.T) {
				all, stop := atWork(t, p, d)
				began := time.Now()
				p.run(t, side.host, "ip", "link", "set", d.wire, "down")
				time.Sleep(2 * time.Second) // the duration of the fault
				p.run(t, side.host, "ip", "link", "set", d.wire, "up")
				for _, o := range all {
					o.goesOn(t, side.name, began)
				}
				stop()
				anew(t, p, d, side.host, "after "+side.name)
			})
		}
	})
}

// atWork connects all layers except net/http, which would make new connections, and starts
// their work, which ends with stop.
func atWork(t *testing.T, p *peer, d driver) (all []*ongoing, stop func()) {
	t.Helper()
	for _, o := range connect(t, p, d) {
		if o.layer == workload.HTTP {
			o.s.Close()
			continue
		}
		all = append(all, o)
	}
	ctx, cancel := context.WithTimeout(t.Context(), workTime)
	for _, o := range all {
		o.begin(ctx, forever, 100_000)
	}
	underWay(t, all)
	stopPoking := poke(all)
	return all, func() {
		cancel()
		for _, o := range all {
			<-o.done
		}
		stopPoking()
		closeAll(all)
	}
}

// goesOn waits until a session has done two more rounds, or ended with an error of its
// layer, and records that. On rxe it may wait forever: the QP that cannot send fails, and
// so does the one that would notify the other side.
func (o *ongoing) goesOn(t *testing.T, what string, began time.Time) {
	t.Helper()
	for was := o.rounds.Load(); o.rounds.Load() < was+2; {
		select {
		case <-o.done:
			o.expect(t, what, began)
			return
		case <-time.After(10 * time.Millisecond):
		}
		if o.driver.device == labtest.RXE && time.Since(began) > 45*time.Second {
			record(t, what, o.layer, o.driver, "no answers any more, as a QP failed", time.Since(began))
			return
		}
	}
	record(t, what, o.layer, o.driver, "continues, data right", time.Since(began))
}

// anew makes new connections of all layers, or records that the kernel of the host whose
// link was down cannot: the connection manager's QP on rxe fails with a message that it
// cannot send, and gets no receives any more.
func anew(t *testing.T, p *peer, d driver, host int, what string) {
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
			renew(t, p, what, l, d, time.Now())
		}
	}
}
