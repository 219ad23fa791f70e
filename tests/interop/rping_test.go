package interop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// rpingPorts is the last port used: every run has a port of its own, as a port stays busy
// for a while after a connection has ended.
var rpingPorts = 7300

// rpingSide is the command of one side, to which options are added.
type rpingSide []string

func (s rpingSide) with(args ...string) rpingSide { return append(s[:len(s):len(s)], args...) }

// rpingSides returns C's and Go's programs.
func rpingSides(t *testing.T) (c, verbs rpingSide) {
	return rpingSide{"rping"}, rpingSide{built(t, "verbs"), "ping"}
}

// startRping starts a server, and a client when the server listens.
func startRping(t *testing.T, device string, s, c rpingSide) (server, client *program) {
	t.Helper()
	for try := 1; ; try++ {
		server, join := listenRping(t, device, s)
		client := join(c)
		if c[0] != "rping" || client.await(device, client.Printed, 50*time.Millisecond) || try == 10 {
			return server, client
		}
		client.Kill()
		server.Kill()
	}
}

// await waits until an event has come, or a client has ended. It returns false if siw has
// overlooked the client's data, for which it looks at intervals.
func (p *program) await(device string, event <-chan struct{}, interval time.Duration) bool {
	p.T.Helper()
	for {
		select {
		case <-event:
			return true
		case <-p.Done:
			return true
		case <-time.After(interval):
			if siwMissedData(p.T, device) {
				return false
			}
		}
	}
}

// listenRping starts a server and returns a function that starts clients of it.
func listenRping(t *testing.T, device string, s rpingSide) (server *program, join func(rpingSide) *program) {
	t.Helper()
	rpingPorts++
	port := strconv.Itoa(rpingPorts)
	run := func(side rpingSide, role string) *program {
		side = side.with(role, "-a", labtest.AddrOf(device), "-p", port)
		return start(t, side[0], side[1:]...)
	}
	server = run(s, "-s")
	labtest.WaitListening(t, port)
	return server, func(c rpingSide) *program { return run(c, "-c") }
}

// waitFirstRound waits until a client that prints its data has done a round. The state of its QP
// and ID in the kernel does not suffice: it is "connected" before the server knows.
func (p *program) waitFirstRound() {
	p.T.Helper()
	select {
	case <-p.Printed:
	case <-p.Done:
		p.T.Fatalf("%v: %v", p.Cmd, p.Err)
	}
}

// TestRping runs rping's protocol with C on either side. Each client compares the data that
// it receives back.
func TestRping(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		small, large := []string{"-S", "23"}, []string{"-S", "65535"}
		for _, r := range labtest.Few(4, []struct {
			name   string
			s, c   rpingSide
			rounds int
			both   []string
		}{
			{"C server, Go client", c, verbs, 30, nil},
			{"Go server, C client", verbs, c, 30, nil},
			{"C server by hand, Go client", c.with("-q"), verbs, 10, nil},
			{"Go server, C client by hand", verbs, c.with("-q"), 10, nil},
			{"Go server, Go client", verbs, verbs, 30, nil},
			{"C server, Go client, small", c, verbs, 5, small},
			{"Go server, C client, small", verbs, c, 5, small},
			{"C server, Go client, large", c, verbs, 10, large},
			{"Go server, C client, large", verbs, c, 10, large},
			{"C server, Go client, all options", c, verbs.with("-I", labtest.AddrOf(device)), 10, []string{"-v", "-d", "-S", "1000"}},
			{"Go server, C client, all options", verbs, c, 10, []string{"-v", "-d", "-S", "1000"}},
		}) {
			t.Run(r.name, func(t *testing.T) {
				if labtest.IWARP(t, device) && r.c[0] == "rping" && r.c[len(r.c)-1] == "-q" {
					t.Skip("rping -c -q establishes what iWARP has established already, which the kernel refuses")
				}
				server, client := startRping(t, device, r.s.with(r.both...), r.c.with(r.both...).with("-V", "-C", strconv.Itoa(r.rounds)))
				client.Wait()
				server.Wait()
			})
		}
	})
}

// TestRpingContent checks that each side prints what the other sent, round by round.
func TestRpingContent(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		c = append(rpingSide{"stdbuf", "-oL"}, c...) // otherwise its two outputs mix
		for name, sides := range map[string][2]rpingSide{"Go server, C client": {verbs, c}, "C server, Go client": {c, verbs}} {
			t.Run(name, func(t *testing.T) {
				s, c := startRping(t, device, sides[0].with("-v"), sides[1].with("-v", "-V", "-C", "60"))
				sent, got := c.Wait(), s.Wait()
				n := 0
				for line := range strings.Lines(sent) {
					if data, ok := strings.CutPrefix(line, "ping data: "); ok {
						if !strings.HasPrefix(data, fmt.Sprintf("rdma-ping-%d: ", n)) || !strings.Contains(got, "server ping data: "+data) {
							t.Errorf("the client sent %q, the server printed %q", data, got)
						}
						n++
					}
				}
				if n != 60 {
					t.Errorf("the client printed %d rounds:\n%s", n, sent)
				}
			})
		}
	})
}

// pingResult is the output of verbs ping --json.
type pingResult struct {
	Role, Device, Local, Remote string
	Count, Size                 int
	Validated                   bool
	Latency                     map[string]float64 `json:"latency_us"`
}

// pingResults parses the results in a program's output, which has other lines as well.
func pingResults(t *testing.T, out string) (all []pingResult) {
	t.Helper()
	for text := out; ; {
		i := strings.Index(text, "{") // which no data has
		if i < 0 {
			return all
		}
		d := json.NewDecoder(strings.NewReader(text[i:]))
		d.DisallowUnknownFields()
		var r pingResult
		if err := d.Decode(&r); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("%v in\n%s", err, out)
		}
		all = append(all, r)
		text = text[i+int(d.InputOffset()):]
	}
}

// check checks the result of a client of any number of rounds.
func (r pingResult) check(t *testing.T, device string, size int) {
	t.Helper()
	addr := labtest.AddrOf(device) + ":"
	if r.Role != "client" || r.Device != device || !strings.HasPrefix(r.Local, addr) || !strings.HasPrefix(r.Remote, addr) ||
		r.Count < 1 || r.Size != size || !r.Validated {
		t.Errorf("result %+v", r)
	}
	var last float64
	for _, p := range []string{"min", "p50", "p90", "p99", "p99.9", "max"} {
		us := r.Latency[p]
		if us <= 0 || us < last {
			t.Errorf("%s of %+v", p, r)
		}
		last = us
	}
	if mean := r.Latency["mean"]; mean < r.Latency["min"] || mean > r.Latency["max"] {
		t.Errorf("mean of %+v", r)
	}
}

func TestPingResult(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		_, client := startRping(t, device, c.with("-S", "100"), verbs.with("--json", "-V", "-S", "100", "-C", "30"))
		results := pingResults(t, client.Wait())
		if len(results) != 1 || results[0].Count != 30 {
			t.Fatalf("results %+v", results)
		}
		results[0].check(t, device, 100)
	})
}
