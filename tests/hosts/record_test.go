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

// record adds a row to the table, if there is to be one, once the test passes:
// what was done, with which layer, on which driver and kernels, what happened,
// and how many seconds it took.
func record(t *testing.T, what string, l *workload.Layer, d driver, result string, took time.Duration) {
	t.Helper()
	recordAs(t, what, l.Name, d, result, took)
}

func recordAs(t *testing.T, what, name string, d driver, result string, took time.Duration) {
	t.Helper()
	t.Logf("%s, %s on %s: %s, %.1f s", what, name, d.name(), result, took.Seconds())
	file := os.Getenv("HOSTS_TABLE")
	if file == "" || t.Failed() {
		return
	}
	f := labtest.Must(os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644))(t)
	kernels := os.Getenv("VERBS_LAB") + " " + os.Getenv("VERBS_PEER")
	test, _, _ := strings.Cut(t.Name(), "/")
	row := []string{test, what, name, d.name(), kernels, result, fmt.Sprintf("%.1f", took.Seconds())}
	if _, err := f.WriteString(strings.Join(row, "\t") + "\n"); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}
