package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

// TestFillPing compares with what rping -v printed, of sizes and rounds where
// something turns around.
func TestFillPing(t *testing.T) {
	for _, c := range []struct {
		round, size int
		want        string
	}{
		{0, 64, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"},
		{1, 64, "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs"},
		{57, 32, "rdma-ping-57: zABCDEFGHIJKLMNOP"},
		{58, 32, "rdma-ping-58: ABCDEFGHIJKLMNOPQ"},
		{7, pingMin, "rdma-ping-7: HIJKLMNOP"},
		{math.MaxInt32, pingMin, "rdma-ping-2147483647: "},
	} {
		b := make([]byte, c.size)
		fillPing(b, c.round)
		if got := string(text(b)); got != c.want || len(got) != c.size-1 {
			t.Errorf("round %d in %d bytes is %q, not %q", c.round, c.size, got, c.want)
		}
	}
}

func TestPingOptions(t *testing.T) {
	for _, c := range []struct {
		cmd  pingCmd
		want string
	}{
		{pingCmd{Client: true, Size: pingMin - 1}, "size 22 is not in 23..65535"},
		{pingCmd{Client: true, Size: pingMax + 1}, "size 65536 is not in 23..65535"},
		{pingCmd{Client: true, Size: 64, Count: -1}, "-1 rounds are too few"},
		{pingCmd{Client: true, Size: 64, Persistent: true}, "only a server is persistent"},
	} {
		if err := c.cmd.Run(t.Context()); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v", c.cmd, err)
		}
	}
}

func TestPingPercentiles(t *testing.T) {
	r := &pingResult{Role: "client"}
	if b := mustJSON(t, r); strings.Contains(b, "latency") {
		t.Error("latencies of nothing:", b)
	}
	r.measure()
	for us := range 1000 {
		r.took(time.Duration(us+1) * time.Microsecond)
	}
	r.took(3 * time.Hour)
	l := r.latency()
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/1000 }
	if !near(l.Min, 1) || !near(l.P50, 501) || !near(l.P90, 901) || !near(l.P99, 991) || !near(l.P999, 1000) || !near(l.Max, 3600e6) {
		t.Errorf("%+v", l)
	}
	r.Latency = l
	if b := mustJSON(t, r); !strings.Contains(b, `"p99.9":`) {
		t.Error(b)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
