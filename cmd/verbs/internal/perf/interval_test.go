//go:build linux

package perf

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// TestIntervals reports what is sent in each period of a run, of both kinds of tests.
func TestIntervals(t *testing.T) {
	for mode, want := range map[string][]string{
		modeBW:  {"0.00-1.00 s: 1000, 1000.00 MiB/s, 8.389 Gbit/s", "1.00-2.00 s: 0, 0.00 MiB/s", "2.00-3.00 s: 500, 500.00 MiB/s", "3.00-3.25 s: 7, 28.00 MiB/s"},
		modeLat: {"0.00-1.00 s: 1000, mean 500.00 us", "1.00-2.00 s: 0", "2.00-3.00 s: 500, mean 1000.00 us", "3.00-3.25 s: 7, mean"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &session{work: work{Op: "send", Mode: mode, Size: 1 << 20, QPs: 1}}
			var got []string
			stop := s.reportIntervals(time.Second, func(i interval) { got = append(got, i.String()) })
			for _, n := range []uint64{1000, 0, 500} {
				time.Sleep(500 * time.Millisecond)
				s.count.Add(n)
				time.Sleep(500 * time.Millisecond)
				synctest.Wait()
			}
			s.count.Add(7)
			time.Sleep(250 * time.Millisecond)
			stop()
			stop()
			if len(got) != len(want) {
				t.Fatalf("%q", got)
			}
			for i := range want {
				if !strings.Contains(got[i], want[i]) {
					t.Errorf("%s: %q, not %q", mode, got[i], want[i])
				}
			}
		})
	}
}

// TestDocument checks what JSON has beside the numbers: what was run, when, limits and whether they
// are kept, a histogram of all messages, and intervals.
func TestDocument(t *testing.T) {
	labtest.Require(t)
	_, port := serve(t, labtest.RoCE)
	doc, err := tryPerf(t, port, "send lat -n 50 --max-lat 1ns --max-p99 1h")
	if err == nil || !strings.Contains(err.Error(), " us is above the limit, 0.001 us") {
		t.Error(err)
	}
	if doc.Version == "" || doc.Go == "" || doc.Kernel == "" || time.Since(doc.Start).Abs() > time.Hour || strings.Join(doc.Arguments[:2], " ") != "send lat" {
		t.Errorf("%+v", doc)
	}
	if p := doc.Parameters; p.Op != "send" || p.Mode != "lat" || p.Iters != 50 || p.Size != 2 || p.Timeout != 30 {
		t.Errorf("%+v", p)
	}
	if doc.Limits["max_lat_us"] != 0.001 || doc.Limits["max_p99_us"] != 3.6e9 || len(doc.Limits) != 2 || len(doc.Failed) != 1 {
		t.Errorf("%v %q", doc.Limits, doc.Failed)
	}
	r := doc.Results[0]
	n, last := int64(0), 0.0
	for _, b := range r.Histogram {
		if b.Count <= 0 || b.AtMost <= last {
			t.Errorf("bucket %+v after %v", b, last)
		}
		n, last = n+b.Count, b.AtMost
	}
	if n != 50 || math.Abs(last-r.Latency.Max) > r.Latency.Max/100 {
		t.Errorf("%d latencies, up to %v: %+v", n, last, r.Latency)
	}

	doc, err = tryPerf(t, port, "send bw -n 100 --interval 1h")
	if err != nil || len(doc.Failed) != 0 || doc.Limits != nil {
		t.Errorf("%v %+v", err, doc)
	}
	if parts := doc.Results[0].Intervals; len(parts) != 1 || parts[0].Messages != 100 || parts[0].To <= parts[0].From || parts[0].Bandwidth == nil || doc.Parameters.Interval != 3600 {
		t.Errorf("%+v", doc.Results[0])
	}
}

// TestNothingMeasured has results without latencies, as of a run whose datagrams were all lost: limits that are not set
// do not ask for them.
func TestNothingMeasured(t *testing.T) {
	of := func(r *result) float64 { return r.Latency.P50 }
	if errs := failures([]*result{{Op: "ud", Mode: modeLat}}, []limit{{text: "%f %f", of: of}}); errs != nil {
		t.Error(errs)
	}
}

// TestOnce runs servers that serve one client: a good one, and one that breaks the protocol.
func TestOnce(t *testing.T) {
	labtest.Require(t)
	for _, good := range []bool{true, false} {
		ports++
		port, want := ports, 0
		server := startHere(t, "server", "-p", strconv.Itoa(port), "--once")
		server.waitFor("listening on [::]:" + strconv.Itoa(port))
		if good {
			if _, err := measure(t, labtest.RoCE, strconv.Itoa(port), "write bw -n 7 -s 64"); err != nil {
				t.Error(err)
			}
			if line := server.line(); !strings.Contains(line, "write bw of 64 bytes for "+labtest.Addr+" on "+labtest.RoCE+": 7 from the client, 0 to it") {
				t.Error(line)
			}
		} else {
			conn := labtest.Must(rsock.Dial("rdma", labtest.Addr+":"+strconv.Itoa(port)))(t)
			conn.Write([]byte("{\"error\":{\"text\":\"\\u001b[2J\"}}\n"))
			defer conn.Close()
			want = 1
		}
		if code := server.wait(); code != want || strings.Contains(server.output(), "\x1b") || good == strings.Contains(server.output(), `peer: \x1b[2J`) {
			t.Errorf("ended with %d: %q", code, server.output())
		}
	}
}

// TestTableWidth prints tables on narrow terminals.
func TestTableWidth(t *testing.T) {
	h := latency.New()
	h.Record(99 * time.Millisecond)
	for _, r := range []*result{
		{Size: maxSize, counts: counts{Sent: 1e7}, Latency: h.Summary()},
		{Size: maxSize, counts: counts{Sent: 1e7}, Bandwidth: &bandwidth{Mebi: 1e5, Gbit: 1e3, Messages: 1e7}},
	} {
		mode := modeBW
		if r.Latency != nil {
			mode = modeLat
			if text := r.line(40); !cli.Fits(text, 40) || !strings.Contains(text, "p99.9") {
				t.Errorf("at 40 columns:\n%s", text)
			}
		}
		if text := heading("write-imm", mode) + "\n" + r.line(tableWidth); !cli.Fits(text, tableWidth) {
			t.Errorf("at %d columns:\n%s", tableWidth, text)
		}
		if r.line(tableWidth) != r.line(0) {
			t.Error("the width of the table changes it")
		}
	}
}

// tryPerf makes a run and returns its document, with the error of the command.
func tryPerf(t *testing.T, port, args string) (doc document, err error) {
	t.Helper()
	var out bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	err = command(ctx, &out, io.Discard, append(strings.Fields(args), labtest.Addr, "-p", port, "--json")...)
	if jerr := json.Unmarshal(out.Bytes(), &doc); jerr != nil || len(doc.Results) != 1 {
		t.Fatalf("%s: %v, %v\n%s", args, err, jerr, &out)
	}
	return doc, err
}
