//go:build linux

package labtest

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
)

// StuckSIW reports whether siw's only thread for handshakes waits for a peer to send the rest of an MPA
// header. If a header comes in two pieces, siw reads it twice, and the second read never returns
// (siw_recv_mpa_rr, Linux 6.1 to 7.2).
func StuckSIW() bool { return ThreadIn("/proc/[0-9]*/stack", "siw_recv_mpa_rr") }

// ThreadIn reports whether a thread is in a function of the kernel. stacks is a
// pattern for the files with the threads' stacks.
func ThreadIn(stacks, function string) bool {
	names, _ := filepath.Glob(stacks)
	return slices.ContainsFunc(names, func(name string) bool {
		stack, err := os.ReadFile(name)
		return err == nil && bytes.Contains(stack, []byte(function))
	})
}
