package ping

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
)

// TestFill compares fill with the output of rping -v, for sizes and rounds at which the
// text wraps around.
func TestFill(t *testing.T) {
	for _, c := range []struct {
		round, size int
		want        string
	}{
		{0, 64, "rdma-ping-0: ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqr"},
		{1, 64, "rdma-ping-1: BCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrs"},
		{57, 32, "rdma-ping-57: zABCDEFGHIJKLMNOP"},
		{58, 32, "rdma-ping-58: ABCDEFGHIJKLMNOPQ"},
		{7, MinSize, "rdma-ping-7: HIJKLMNOP"},
		{math.MaxInt32, MinSize, "rdma-ping-2147483647: "},
	} {
		b := make([]byte, c.size)
		fill(b, c.round)
		if got := string(text(b)); got != c.want || len(got) != c.size-1 {
			t.Errorf("round %d in %d bytes is %q, not %q", c.round, c.size, got, c.want)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, c := range []struct {
		cmd  Cmd
		want string
	}{
		{Cmd{Client: true, Size: MinSize - 1}, "size (-S): 22 is not in 23..65535"},
		{Cmd{Client: true, Size: maxSize + 1}, "size (-S): 65536 is not in 23..65535"},
		{Cmd{Client: true, Size: 64, Count: -1}, "rounds (-C): -1 is below 0"},
		{Cmd{Client: true, Size: 64, Persistent: true}, "persistent (-P): for servers only"},
	} {
		if err := c.cmd.Run(t.Context()); err == nil || err.Error() != c.want {
			t.Errorf("%+v: %v", c.cmd, err)
		}
	}
}

// TestResult checks that only clients report latencies.
func TestResult(t *testing.T) {
	r := &result{Role: "server"}
	if b := mustJSON(t, r); strings.Contains(b, "latency") {
		t.Error("latencies of nothing:", b)
	}
	r.histogram = latency.New()
	r.histogram.Record(5 * time.Microsecond)
	r.Latency = r.histogram.Summary()
	if b := mustJSON(t, r); !strings.Contains(b, `"latency_us":{"min":5,`) {
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
