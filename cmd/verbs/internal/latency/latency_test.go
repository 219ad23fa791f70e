package latency

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"
)

func TestSummary(t *testing.T) {
	var none *Histogram
	if s := none.Summary(); s != nil {
		t.Error("summary of no histogram:", s)
	}
	h := New()
	if s := h.Summary(); s != nil {
		t.Error("summary of nothing:", s)
	}
	for us := range 1000 {
		h.Record(time.Duration(us+1) * time.Microsecond)
	}
	h.Record(3 * time.Hour)
	s := h.Summary()
	near := func(got, want float64) bool { return math.Abs(got-want) <= want/1000 }
	if !near(s.Min, 1) || !near(s.P50, 501) || !near(s.P90, 901) || !near(s.P99, 991) || !near(s.P999, 1000) || !near(s.Max, 3600e6) {
		t.Errorf("%+v", s)
	}
	b, err := json.Marshal(s)
	if err != nil || !strings.Contains(string(b), `"p99.9":`) {
		t.Errorf("%s, %v", b, err)
	}
	if n := testing.AllocsPerRun(100, func() { h.Record(time.Millisecond) }); n != 0 {
		t.Errorf("recording allocates %v times", n)
	}
}
