package interop

import (
	"os"
	"strconv"
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

// TestPingServerOfMany runs many C clients of Go's persistent server at the same time, and
// then interrupts the server.
func TestPingServerOfMany(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		c, verbs := rpingSides(t)
		const rounds = 10
		server, clients := startMany(t, device, rpingClients(), verbs.with("-P", "--json"), c.with("-V", "-C", strconv.Itoa(rounds)))
		for _, p := range clients {
			p.Wait()
		}
		server.Signal(os.Interrupt)
		out := server.Wait()
		sizes := map[int]bool{}
		for _, r := range pingResults(t, out) {
			if r.Role != "server" || r.Device != device || r.Count != rounds {
				t.Errorf("result %+v", r)
			}
			sizes[r.Size] = true
		}
		if len(sizes) != rpingClients() {
			t.Errorf("%d clients are in\n%s", len(sizes), out)
		}
	})
}

// startMany starts a server and n clients, each with a size of its own, and waits until
// they have ended. It starts again if siw overlooks a client.
func startMany(t *testing.T, device string, n int, s, c rpingSide) (server *program, clients []*program) {
	t.Helper()
	for try := 1; ; try++ {
		server, join := listenRping(t, device, s)
		clients := make([]*program, n)
		for i := range clients {
			clients[i] = join(c.with("-S", strconv.Itoa(100+i)))
		}
		if try == 10 || waitAll(t, device, clients) {
			return server, clients
		}
		for _, p := range append(clients, server) {
			p.Kill()
		}
	}
}

// waitAll waits until all clients have ended. It returns false if siw has overlooked the
// data of one.
func waitAll(t *testing.T, device string, clients []*program) bool {
	t.Helper()
	for _, p := range clients {
		for ended := false; !ended; {
			select {
			case <-p.Done:
				ended = true
			case <-time.After(5 * time.Second):
				if siwMissedData(t, device) {
					return false
				}
			}
		}
	}
	return true
}
