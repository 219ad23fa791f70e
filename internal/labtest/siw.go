package labtest

import (
	"bytes"
	"os"
	"path/filepath"
)

// StuckSIW tells whether the one thread that siw has for all its handshakes
// waits for a stranger to send the rest of an MPA header. It reads twice what has
// come in two pieces, and the second time it waits, for ever (siw_recv_mpa_rr,
// Linux 6.1 to 7.2).
func StuckSIW() bool {
	stacks, _ := filepath.Glob("/proc/[0-9]*/stack")
	for _, name := range stacks {
		if stack, err := os.ReadFile(name); err == nil && bytes.Contains(stack, []byte("siw_recv_mpa_rr")) {
			return true
		}
	}
	return false
}
