//go:build linux

package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// TestClockCheck checks clocks that are right, and each kind that is wrong.
func TestClockCheck(t *testing.T) {
	speed := ticksPerSecond()
	for _, test := range []struct {
		name               string
		here, there, ticks float64
		wrong              bool
	}{
		{"right", 2, 0.05, 2 * speed, false},
		{"half a percent off", 2.01, 0.05, 2 * speed, false},
		{"a clock that is too fast", 1.9, 0.05, 2 * speed, true},
		{"a clock that is too slow", 2.1, 0.05, 2 * speed, true},
		{"another counter", 2, 0.05, 3 * speed, true},
		{"a late timer", 2.4, 0.06, 2.4 * speed, true},
		{"no dilation", 0.05, 0.05, 0.05 * speed, true},
	} {
		c := clockCheck{factor: 40}
		if err := c.compare(test.here, test.there, test.ticks); errors.Is(err, errClock) != test.wrong {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

// TestDilation boots a machine whose time is dilated: its second takes ten seconds here.
func TestDilation(t *testing.T) {
	if found, _ := filepath.Glob(faketimeLib); len(found) == 0 {
		t.Skip("faketime is not installed")
	}
	cmd, stdout, stderr := lab(t, "sh", "-c", "nproc; cat /proc/uptime")
	cmd.Env = append(cmd.Env, "LAB_ACCEL=dilated", "LAB_FACTOR=10", "LAB_CPUS=3")
	code := status(t, cmd.Run())
	if strings.Contains(stderr.String(), errClock.Error()) && code == exitLab {
		t.Skip(stderr) // other tests load this machine
	}
	if code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	var processors int
	var up float64
	if n, err := fmt.Sscan(stdout.String(), &processors, &up); n != 2 || processors != 3 || up > 3 {
		t.Errorf("the guest says %q: %v", stdout, err)
	}
}
