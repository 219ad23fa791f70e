//go:build linux

package job

import (
	"slices"
	"testing"
)

func TestWarnings(t *testing.T) {
	for _, test := range []struct {
		line string
		want bool
	}{
		{"[    6.1] general protection fault, probably for non-canonical address 0xdead: 0000 [#1] PREEMPT SMP", true},
		{"[    6.1] general protection fault: 0000 [#1] SMP", true},
		{"[    6.1] WARNING: CPU: 0 PID: 1 at lib/refcount.c:28", true},
		{"[    6.1] traps: ib_send_lat[409] general protection fault ip:7f97 sp:7ffe error:0 in librdmacm.so.1", false},
		{"[    6.1] rdma_rxe: loaded", false},
	} {
		if got, _ := Warnings(slices.Values([]string{test.line})); len(got) > 0 != test.want {
			t.Errorf("%q is a warning: %v, want %v", test.line, !test.want, test.want)
		}
		announced := []string{expectPrefix + test.line[len(test.line)-8:], test.line, "a trace"}
		if got, expected := Warnings(slices.Values(announced)); len(got) > 0 || len(expected) > 0 != test.want {
			t.Errorf("announced: %q, and %q as expected", got, expected)
		}
	}
}
