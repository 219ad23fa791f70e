package nic

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// pingpong starts both sides of a pingpong. The server checks data.
func (a adapter) pingpong(t *testing.T, limit time.Duration, typ string, args ...string) couple {
	t.Helper()
	return startTCP(t, limit, slices.Concat([]string{"ibv_" + typ + "_pingpong", "-d", device, "-c"}, a.gidArgs("-g"), args)...)
}

// checkPingpong waits for both sides.
func checkPingpong(t *testing.T, c couple) {
	t.Helper()
	server, client := c.wait()
	for _, out := range []string{server, client} {
		if strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
			t.Errorf("printed\n%s", out)
		}
	}
}

// TestPingpong exchanges messages on QPs of all types, while both sides poll or wait for events.
func TestPingpong(t *testing.T) {
	a := newAdapter(t)
	a.needExchange(t)
	iters := fmt.Sprint(labtest.Rounds(1000, 50))
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		t.Run("ibv_"+typ+"_pingpong", func(t *testing.T) {
			if typ != "rc" {
				a.needTypes(t)
			}
			size := "65536"
			if typ == "ud" { // limited by the port's MTU
				size = "1024"
			}
			for _, r := range []struct {
				name string
				args []string
				long bool
			}{
				{"polled", []string{"-s", size}, false},
				{"events", []string{"-s", size, "-e"}, false},
				{"GRH", []string{"-s", size, "-g", "0"}, false}, // RoCE always has one
				{"1 byte", []string{"-s", "1"}, true},
				{"1 byte, events", []string{"-s", "1", "-e"}, true},
				{"new API", []string{"-N"}, true},
				{"timestamps", []string{"-t"}, true},
				{"on demand", []string{"-s", size, "-o"}, false},
				{"on demand, advised", []string{"-s", size, "-o", "-P"}, true},
				{"on demand, all memory", []string{"-s", size, "-O"}, true},
			} {
				if strings.HasPrefix(r.name, "on demand") && (a.erdma || typ != "rc" && (typ != "srq" || r.long)) {
					continue // they do not have the option, or the adapter not paging
				}
				if r.long && testing.Short() || r.name == "new API" && typ != "rc" || r.name == "timestamps" && typ != "rc" || r.name == "GRH" && !a.infiniBand() {
					continue
				}
				t.Run(r.name, func(t *testing.T) {
					checkPingpong(t, a.pingpong(t, patience, typ, append(r.args, "-n", iters)...))
				})
			}
		})
	}
}

// amount is what TestPairs moves.
var amount = flag.Int64("bytes", 0, "bytes that TestPairs moves; 10 GB if zero, or 64 MB with -short")

// TestPairs exchanges messages on eight pairs of RC QPs at once, and checks data.
func TestPairs(t *testing.T) {
	a := newAdapter(t)
	a.needExchange(t)
	const pairs, size = 8, 65536
	if *amount == 0 {
		*amount = int64(labtest.Rounds(10_000_000_000, 64_000_000))
	}
	iters := fmt.Sprint(max(*amount/(2*pairs*size), 1))
	var all []couple
	begin := time.Now()
	for range pairs {
		all = append(all, a.pingpong(t, time.Hour, "rc", "-s", fmt.Sprint(size), "-n", iters))
	}
	for _, c := range all {
		checkPingpong(t, c)
	}
	t.Logf("%d pairs moved %s messages of %d bytes each way in %.1f s", pairs, iters, size, time.Since(begin).Seconds())
}
