package bench

import (
	"flag"
	"fmt"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

var firstMessages = flag.Int("firstmessages", 200, "how many connections TestFirstMessage makes from each client to each server")

// TestFirstMessage makes many connections to our server and to C's, each of which has a
// message there and back at once, while all processors are busy. siw overlooks some of
// these messages: all have to come through nevertheless, without being sent again.
func TestFirstMessage(t *testing.T) {
	program := labtest.Built(t, "connect")
	dial, loop := side{program, "7509", nil}, side{program, "7509", []string{"-loop"}}
	c := side{compile(t, "connect.c", "-lrdmacm", "-libverbs"), "7510", nil}
	forgetPorts(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		dial.serve(t, addr)
		c.serve(t, addr)
		keepBusy(t)
		for _, client := range []side{dial, loop} {
			for _, server := range []side{dial, c} {
				client.port = server.port
				t.Run(fmt.Sprint(client.options, " to ", server.port), func(t *testing.T) {
					const turn = 50 // connections that are made within a session's patience
					connect := client.connecting(t, addr, "first", fmt.Sprint(turn))
					start, slow := time.Now(), 0
					var longest float64
					for done := 0; done < *firstMessages; done += turn {
						for _, ns := range connect()["took"] {
							longest = max(longest, ns)
							if ns > 1e6 {
								slow++
							}
						}
					}
					t.Logf("%s: %d connections in %v, %d took over a millisecond, the longest %v",
						device, *firstMessages, time.Since(start), slow, time.Duration(longest))
				})
			}
		}
	})
}

// keepBusy has all processors compute until the test ends.
func keepBusy(t *testing.T) {
	t.Helper()
	for range runtime.NumCPU() {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
	}
}
