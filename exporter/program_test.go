//go:build linux

package exporter

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// value returns the value of a series.
func value(t *testing.T, text, series string) float64 {
	t.Helper()
	_, rest, ok := strings.Cut("\n"+text, "\n"+series+" ")
	if !ok {
		t.Fatalf("there is no %s in\n%s", series, text)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return labtest.Must(strconv.ParseFloat(line, 64))(t)
}

// TestTraffic compares the metrics of a program with what its connections carried, scrapes it
// while connections come and go, and reads the device that carries them at the same time.
func TestTraffic(t *testing.T) {
	labtest.Require(t)
	const clients, rounds, size = 4, 10, 10_000
	l := labtest.Must(rsock.Listen("rdma", labtest.AddrOf(labtest.RXE)+":0"))(t).(*rsock.Listener)
	var d rsock.Dialer
	collectors := []prometheus.Collector{NewCollector("api", l), NewCollector("api", &d), NewDeviceCollector(DeviceOptions{Processes: true})}
	var servers, dialers, scraper sync.WaitGroup
	servers.Go(func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			servers.Go(func() {
				defer c.Close()
				if _, err := io.Copy(c, c); err != nil {
					t.Error(err)
				}
			})
		}
	})
	done := make(chan struct{})
	scraper.Go(func() {
		before := 0.0
		for running := true; running; {
			select {
			case <-done:
				running = false
			default:
			}
			now := value(t, gather(t, collectors...), `verbs_rsock_sent_bytes_total{name="api",source="listener"}`)
			if now < before {
				t.Errorf("%v bytes were sent, and %v before", now, before)
			}
			before = now
		}
	})
	for range clients {
		dialers.Go(func() {
			for range rounds {
				c, err := d.Dial("rdma", l.Addr().String())
				if err != nil {
					t.Error(err)
					return
				}
				out, in := labtest.RandomBytes(1, size), make([]byte, size)
				c.Write(out)
				if _, err := io.ReadFull(c, in); err != nil || !bytes.Equal(in, out) {
					t.Errorf("read: %v", err)
				}
				c.Close()
			}
		})
	}
	dialers.Wait()
	l.Close()
	servers.Wait()
	close(done)
	scraper.Wait()
	var text string
	for _, source := range []string{"listener", "dialer"} { // Close waits for the peer behind the program's back
		labtest.Until(t, "the connections to end", func() bool {
			text = gather(t, collectors...)
			return value(t, text, `verbs_rsock_open_connections{name="api",source="`+source+`"}`) == 0
		})
	}
	for name, want := range map[string]float64{
		"received_bytes_total": clients * rounds * size, "sent_bytes_total": clients * rounds * size, "unread_bytes": 0,
	} {
		for _, source := range []string{"listener", "dialer"} {
			if v := value(t, text, "verbs_rsock_"+name+`{name="api",source="`+source+`"}`); v != want {
				t.Errorf("%s of the %s: %v, want %v", name, source, v, want)
			}
		}
	}
	if v := value(t, text, `verbs_rsock_accepted_total{name="api",source="listener",transport="rdma"}`); v != clients*rounds {
		t.Errorf("%v connections accepted", v)
	}
	if v := value(t, text, `rdma_hw_sent_pkts_total{device="rxe0",port="1"}`); v < clients*rounds*size/1500 {
		t.Errorf("the device sent %v packets", v)
	}
}

// TestTwice: a registry takes several sources, and refuses one twice, by an error.
func TestTwice(t *testing.T) {
	reg := prometheus.NewRegistry()
	var d rsock.Dialer
	labtest.Check(t, reg.Register(NewCollector("a", &d)), reg.Register(NewCollector("b", &d)))
	if err := reg.Register(NewCollector("a", &d)); err == nil {
		t.Error("the same metrics were registered twice")
	}
	if !reg.Unregister(NewCollector("a", &d)) {
		t.Error("it cannot be removed")
	}
}
