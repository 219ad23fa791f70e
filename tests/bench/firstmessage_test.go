package bench

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var firstMessages = flag.Int("firstmessages", 100, "how many connections TestFirstMessage makes to each server")

// TestFirstMessage makes many connections to a server in Go and one in C, and immediately
// exchanges a message over each. All processors are busy, and the servers are preempted
// while they accept, so siw overlooks some of the messages until more data arrives.
func TestFirstMessage(t *testing.T) {
	program := labtest.Built(t, "connect")
	reluctant := func(port, program string) side { return side{"nice", port, []string{"-n", "10", program}} }
	servers := map[string]side{
		"Go": reluctant("7509", program),
		"C":  reluctant("7510", labtest.Built(t, "c/connect")),
	}
	disableTimeWait(t)
	preempt(t)
	keepBusy(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		for name, server := range servers {
			t.Run(name, func(t *testing.T) {
				server.serve(t, addr)
				const turn = 100 // connections that fit into a session's time limit
				connect, end := side{program, server.port, nil}.connecting(t, addr, "first", fmt.Sprint(turn), "8")()
				defer end()
				start, longest := time.Now(), 0.0
				for done := 0; done < *firstMessages; done += turn {
					for _, ns := range connect()["took"] {
						longest = max(longest, ns)
					}
				}
				t.Logf("%d connections in %v, the longest took %v", *firstMessages, time.Since(start), time.Duration(longest))
			})
		}
	})
}

// preempt makes the kernel preemptible until the test ends, if it supports the choice.
func preempt(t *testing.T) {
	t.Helper()
	const file = "/sys/kernel/debug/sched/preempt" // "none (voluntary) full"
	modes, err := os.ReadFile(file)
	if err != nil {
		t.Logf("the kernel does not interrupt itself: %v", err)
		return
	}
	_, rest, _ := strings.Cut(string(modes), "(")
	before, _, _ := strings.Cut(rest, ")")
	set := func(mode string) {
		if err := os.WriteFile(file, []byte(mode), 0); err != nil {
			t.Error(err)
		}
	}
	set("full")
	t.Cleanup(func() { set(before) })
}

// keepBusy keeps all processors busy until the test ends.
func keepBusy(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("nice", "-n", "10", "sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
}
