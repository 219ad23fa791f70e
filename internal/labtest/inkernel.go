package labtest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
)

// StuckSIW reports whether the one thread that siw has for all its handshakes
// waits for a stranger to send the rest of an MPA header. It reads twice what has
// come in two pieces, and the second time it waits without end (siw_recv_mpa_rr,
// Linux 6.1 to 7.2).
func StuckSIW() bool { return InKernel("/proc/[0-9]*/stack", "siw_recv_mpa_rr") }

// InKernel reports whether any of the threads whose stacks match a pattern is in a
// function of the kernel's.
func InKernel(stacks, function string) bool {
	names, _ := filepath.Glob(stacks)
	return slices.ContainsFunc(names, func(name string) bool {
		stack, err := os.ReadFile(name)
		return err == nil && bytes.Contains(stack, []byte(function))
	})
}
