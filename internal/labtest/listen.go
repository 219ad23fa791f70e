//go:build linux

package labtest

import (
	"os/exec"
	"strings"
	"testing"
	"time"
)

// WaitListening waits until a program listens on an RDMA port, which only rdma(8) shows.
func WaitListening(t testing.TB, port string) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		out, err := exec.Command("rdma", "resource", "show", "cm_id").CombinedOutput()
		if err != nil {
			t.Fatalf("rdma (Debian's iproute2): %v\n%s", err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "LISTEN") && strings.Contains(line, ":"+port+" ") {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("no program listens on port %s", port)
}
