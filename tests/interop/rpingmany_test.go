package interop

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

func rpingClients() int { return labtest.Rounds(20, 5) }

func signalAll(t *testing.T, programs []*program, s os.Signal) {
	t.Helper()
	for _, p := range programs {
		if err := p.Cmd.Process.Signal(s); err != nil {
			t.Error(err)
		}
	}
}

// TestRpingServerOfMany runs many clients of C's persistent server at the same time. They
// connect one by one and are stopped until all have connected: the server loses requests
// that arrive before it has handled the previous one.
func TestRpingServerOfMany(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		_, join := listenRping(t, device, c.with("-P", "-S", "200"))
		clients := make([]*program, rpingClients())
		for i := range clients {
			clients[i] = join(verbs.with("--json", "-v", "-V", "-S", "200"))
			clients[i].waitFirstRound()
			signalAll(t, clients[i:i+1], unix.SIGSTOP)
		}
		signalAll(t, clients, unix.SIGCONT)
		time.Sleep(500 * time.Millisecond)
		signalAll(t, clients, os.Interrupt)
		for _, p := range clients {
			results := pingResults(t, p.Wait())
			if len(results) != 1 {
				t.Fatalf("results %+v", results)
			}
			results[0].check(t, device, 200)
		}
		join(verbs.with("-V", "-S", "200", "-C", "5")).Wait()
	})
}

// TestPingServerOfMany runs many C clients of Go's persistent server at the same time, each with a
// size of its own, and then interrupts the server. A client that siw overlooks is replaced, and
// the server's result of it tells fewer rounds.
func TestPingServerOfMany(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		const rounds = 10
		server, join := listenRping(t, device, verbs.with("-P", "--json"))
		clients, overlooked := make([]*program, rpingClients()), 0
		begin := func(i int) {
			clients[i] = join(c.with("-V", "-C", strconv.Itoa(rounds), "-S", strconv.Itoa(100+i)))
		}
		for i := range clients {
			begin(i)
		}
		for i := range clients {
			for !clients[i].await(device, clients[i].Done, 5*time.Second) {
				if overlooked++; overlooked > 10*len(clients) {
					t.Fatalf("siw has overlooked %d clients", overlooked)
				}
				clients[i].Kill()
				begin(i)
			}
			clients[i].Wait()
		}
		labtest.Until(t, "the server's results", func() bool {
			return strings.Count(server.Out.String(), `"role"`) == len(clients)+overlooked
		})
		server.Signal(os.Interrupt)
		out := server.Wait()
		sizes := map[int]bool{}
		for _, r := range pingResults(t, out) {
			if r.Role != "server" || r.Device != device || r.Count > rounds {
				t.Errorf("result %+v", r)
			}
			if r.Count == rounds {
				sizes[r.Size] = true
			} else if overlooked--; overlooked < 0 {
				t.Errorf("%d of %d rounds: %+v", r.Count, rounds, r)
			}
		}
		if len(sizes) != len(clients) {
			t.Errorf("%d clients are in\n%s", len(sizes), out)
		}
	})
}
