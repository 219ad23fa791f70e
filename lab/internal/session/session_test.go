//go:build linux

package session

import (
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
)

func TestTakeFlags(t *testing.T) {
	for _, test := range []struct {
		args  string
		limit time.Duration
		rest  string
	}{
		{"-v ./...", 10 * time.Minute, "-v ./..."},
		{"-timeout 5s ./a", 5 * time.Second, "./a"},
		{"-v --timeout=1h ./a", time.Hour, "-v ./a"},
		{"./a -test.timeout 0", 0, "./a"},
		{"./a -args -timeout 5s", 10 * time.Minute, "./a -args -timeout 5s"},
		{"./a -args -exec sudo -c", 10 * time.Minute, "./a -args -exec sudo -c"},
		{"-c=false -gcflags -c=4 ./a", 10 * time.Minute, "-c=false -gcflags -c=4 ./a"},
	} {
		limit, rest, err := takeFlags(strings.Fields(test.args))
		if got := strings.Join(rest, " "); err != nil || limit != test.limit || got != test.rest {
			t.Errorf("%s: %v, %s, %v", test.args, limit, got, err)
		}
	}
	for args, want := range map[string]string{
		"-timeout":            "-timeout",
		"-timeout=soon":       "-timeout",
		"-v -exec sudo ./a":   "-exec",
		"--exec=sudo ./a":     "-exec",
		"./a -exec ''":        "-exec",
		"-gcflags=-m -c ./a":  "-c",
		"-c=true -o x ./a":    "-c",
		"-ldflags -s -exec x": "-exec",
	} {
		if _, _, err := takeFlags(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), "test: "+want) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// TestNoProgram has a client that asks for no program.
func TestNoProgram(t *testing.T) {
	for _, args := range [][]string{nil, {machine.TimeoutFlag + "1s"}} {
		s := &session{limit: time.Second, endTurn: func() {}}
		if code, err := s.run(t.Context(), request{Args: args}, machine.Stdio{}); code != job.ExitLab || err == nil {
			t.Errorf("%q: %d, %v", args, code, err)
		}
	}
}
