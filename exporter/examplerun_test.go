//go:build linux

package exporter_test

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestExamples runs the examples. They exit if they fail.
func TestExamples(t *testing.T) {
	labtest.Require(t)
	want := "verbs_rsock_open_connections{name=\"api\",source=\"dialer\"} 1\nverbs_rsock_open_connections{name=\"api\",source=\"listener\"} 1\n"
	if got := labtest.Output(t, ExampleNewCollector); got != want {
		t.Errorf("it prints %q", got)
	}
}
