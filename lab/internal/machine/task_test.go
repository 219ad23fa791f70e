//go:build linux

package machine

import (
	"strings"
	"testing"
	"time"
)

func TestShorten(t *testing.T) {
	for _, test := range []struct {
		timeout      string
		begun        time.Duration // ago; 0 for never
		least, most  time.Duration
		never, error bool
	}{
		{"10m0s", time.Minute, 8 * time.Minute, 9 * time.Minute, false, false},
		{"10m0s", 0, 10 * time.Minute, 10 * time.Minute, true, false},
		{"0s", time.Minute, 0, 0, false, false},
		{"1m0s", time.Minute, 0, 0, false, true},
	} {
		var begun time.Time
		if !test.never {
			begun = time.Now().Add(-test.begun)
		}
		args, err := shorten([]string{"x.test", TimeoutFlag + test.timeout, "-test.v"}, begun)
		if test.error != (err != nil) {
			t.Errorf("%+v: %v", test, err)
		}
		if err != nil {
			continue
		}
		got, err := time.ParseDuration(strings.TrimPrefix(args[1], TimeoutFlag))
		if err != nil || got < test.least || got > test.most {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
	}
}
