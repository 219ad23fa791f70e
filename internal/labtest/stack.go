//go:build linux

package labtest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// UntilBlocked waits until n goroutines are blocked in a function, such as "(*Listener).Accept", by the
// stacks of all goroutines.
func UntilBlocked(t testing.TB, n int, function string) {
	t.Helper()
	buf := make([]byte, 4<<20)
	Until(t, fmt.Sprintf("%d goroutines to block in %s", n, function), func() bool {
		blocked := 0
		for g := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
			state, calls, _ := strings.Cut(g, "\n")
			if strings.Contains(calls, function+"(") && !strings.Contains(state, "[run") { // running or runnable
				blocked++
			}
		}
		return blocked >= n
	})
}

// Collect runs the garbage collector and cleanups, several times, as a cleanup may make more garbage.
func Collect() {
	for range 5 {
		done := make(chan bool)
		runtime.AddCleanup(new([64]byte), func(done chan bool) { close(done) }, done)
		runtime.GC()
		<-done
	}
}

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
