//go:build linux

package guest

import (
	"os"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/internal/job"
)

// TestJobDuringProgram has a host that takes a program's end from a forged report, and gives the next job. It
// must not be lost: the host would wait for its start.
func TestJobDuringProgram(t *testing.T) {
	port, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer port.Close()
	w := &worker{port: port, root: &root{}}
	orders := make(chan job.Order, 1)
	orders <- job.Order{Job: &job.Job{Args: []string{"true"}}}
	begun := time.Now()
	if err := w.do(job.Job{Args: []string{"sleep", "5"}}, orders, &job.Result{}); err == nil || time.Since(begun) > 4*time.Second {
		t.Errorf("the second job is lost: %v after %v", err, time.Since(begun))
	}
}
