package hosts

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/tests/workload"
)

// record adds a row to the table, if one is written and the test has not failed: what was
// done, with which layer, on which driver and kernels, what happened, and how many seconds
// it took.
func record(t *testing.T, what string, l *workload.Layer, d driver, result string, took time.Duration) {
	t.Helper()
	recordAs(t, what, l.Name, d, result, took)
}

func recordAs(t *testing.T, what, name string, d driver, result string, took time.Duration) {
	t.Helper()
	t.Logf("%s, %s on %s: %s, %.1f s", what, name, d.name(), result, took.Seconds())
	if t.Failed() {
		return
	}
	kernels := os.Getenv("VERBS_LAB") + " " + os.Getenv("VERBS_PEER")
	test, _, _ := strings.Cut(t.Name(), "/")
	row := []string{test, what, name, d.name(), kernels, result, fmt.Sprintf("%.1f", took.Seconds())}
	labtest.AppendTo(t, os.Getenv("HOSTS_TABLE"), strings.Join(row, "\t")+"\n")
}
