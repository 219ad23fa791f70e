//go:build linux

package session

import (
	"strings"
	"testing"
	"time"
)

func TestTakeTimeout(t *testing.T) {
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
	} {
		limit, rest, err := takeTimeout(strings.Fields(test.args))
		if got := strings.Join(rest, " "); err != nil || limit != test.limit || got != test.rest {
			t.Errorf("%s: %v, %s, %v", test.args, limit, got, err)
		}
	}
	for _, args := range [][]string{{"-timeout"}, {"-timeout=soon"}} {
		if _, _, err := takeTimeout(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
