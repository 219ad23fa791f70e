package hosts

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/tests/workload"
)

// record logs what was done, with which layer, on which driver, what happened, and how long it
// took.
func record(t *testing.T, what string, l *workload.Layer, d driver, result string, took time.Duration) {
	t.Helper()
	t.Logf("%s, %s on %s: %s, %.1f s", what, l.Name, d.name(), result, took.Seconds())
}
