package labtest

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Listening waits until somebody listens on an RDMA port, which no file shows.
func Listening(t testing.TB, port string) {
	t.Helper()
	for range 200 {
		out, err := exec.Command("rdma", "resource", "show", "cm_id").CombinedOutput()
		if err != nil {
			t.Fatalf("rdma (Debian's iproute2): %v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "LISTEN") && strings.Contains(line, ":"+port+" ") {
				return
			}
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("nobody listens on port %s", port)
}
