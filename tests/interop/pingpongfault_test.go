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

// fails checks that the program fails soon, and prints want.
func (p *program) fails(want string) {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		p.t.Fatalf("%v hangs", p.cmd)
	}
	if p.err == nil || !strings.Contains(p.out.String(), want) {
		p.t.Errorf("%v: %v, without %q", p.cmd, p.err, want)
	}
}

func (p *program) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// packets returns how many packets the device has received.
func packets(t *testing.T) (n int) {
	t.Helper()
	text := labtest.Must(os.ReadFile("/sys/class/infiniband/" + labtest.RXE + "/ports/1/hw_counters/rcvd_pkts"))(t)
	return labtest.Must(strconv.Atoi(strings.TrimSpace(string(text))))(t)
}

// TestPingPongPeerGone checks that one side ends when the other is interrupted or killed.
func TestPingPongPeerGone(t *testing.T) {
	labtest.Require(t)
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		_, verbs := pingpongSides(t, typ)
		play := func(t *testing.T, extra ...string) (server, client *program) {
			before := packets(t)
			server, client = startPingpong(t, verbs, verbs, append(extra, "-n", "100000000", "--timeout", "4s")...)
			for packets(t) < before+100 {
				select {
				case <-client.done:
					<-server.done
					t.Fatalf("no messages go: %v, %v", client.err, server.err)
				case <-time.After(10 * time.Millisecond):
				}
			}
			return server, client
		}
		t.Run(typ+"/interrupted client", func(t *testing.T) {
			server, client := play(t)
			client.signal(os.Interrupt)
			client.fails("interrupt signal received")
			server.failsWithoutPeer()
		})
		t.Run(typ+"/killed server, events", func(t *testing.T) {
			server, client := play(t, "-e")
			server.signal(unix.SIGKILL)
			client.failsWithoutPeer()
		})
		t.Run(typ+"/terminated, events", func(t *testing.T) {
			_, client := play(t, "-e")
			client.signal(unix.SIGTERM)
			client.fails("terminated signal received")
		})
	}
}

// failsWithoutPeer checks that the program fails because its peer has gone.
func (p *program) failsWithoutPeer() {
	p.t.Helper()
	p.fails("of 100000000 messages: ")
	if out := p.out.String(); !strings.Contains(out, "does not answer") && !strings.Contains(out, "nothing came from the peer for 4s") {
		p.t.Errorf("%v printed\n%s", p.cmd, out)
	}
}

// TestPingPongNoPeer makes runs that end before any message is sent.
func TestPingPongNoPeer(t *testing.T) {
	labtest.Require(t)
	verbs := built(t, "verbs")
	t.Run("refused", func(t *testing.T) {
		start(t, verbs, "pingpong", "rc", labtest.Addr, "-p", "1").fails("connection refused")
	})
	t.Run("interrupted server", func(t *testing.T) {
		pingpongPorts++
		server := start(t, verbs, "pingpong", "srq", "-p", strconv.Itoa(pingpongPorts))
		server.listensTCP(pingpongPorts)
		server.signal(os.Interrupt)
		server.fails("interrupt signal received")
	})
	t.Run("port in use", func(t *testing.T) {
		pingpongPorts++
		port := strconv.Itoa(pingpongPorts)
		server := start(t, verbs, "pingpong", "rc", "-p", port)
		server.listensTCP(pingpongPorts)
		start(t, verbs, "pingpong", "rc", "-p", port).fails("address already in use")
		server.signal(unix.SIGTERM)
		server.fails("terminated signal received")
	})
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		t.Run("iWARP "+typ, func(t *testing.T) {
			begin := time.Now()
			start(t, verbs, "pingpong", typ, "-d", labtest.SIW).fails("siw0 is an iWARP device")
			if took := time.Since(begin); took > 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
	for args, want := range map[string]string{
		"rc -d nothing":    "there are",
		"rc -i 2":          "port 2 of 1",
		"rc -g 900":        "query GID",
		"rc -s 0":          "rxe0 takes 1 to",
		"ud -s 1025":       "rxe0 takes 1 to 1024",
		"rc -m 1000":       "must be one of",
		"rc -m 2048 -n 0":  "must be 1 or more",
		"rc -r 0":          "must be 1 or more",
		"rc -r 4000000000": "CQ",
		"srq -q 256":       "1..255",
		"srq -q 20 -r 19":  "too few",
		"rc -q 2":          "unknown flag",
	} {
		t.Run(args, func(t *testing.T) {
			start(t, verbs, append([]string{"pingpong"}, strings.Fields(args)...)...).fails(want)
		})
	}
}

// TestPingPongDisagree runs two sides with different options.
func TestPingPongDisagree(t *testing.T) {
	labtest.Require(t)
	_, srq := pingpongSides(t, "srq")
	c, rc := pingpongSides(t, "rc")
	quick := func(s pingpongSide, args ...string) pingpongSide {
		return append(append(s[:len(s):len(s)], "--timeout", "1s"), args...)
	}
	noGID := pingpongSide{c[0], "-d", labtest.RXE}
	for _, d := range []struct {
		name           string
		s, c           pingpongSide
		server, client string // what they print; not checked for C
	}{
		{"more QPs", quick(srq, "-q", "3"), quick(srq, "-q", "4"), "it uses 4 QPs and this side 3", "closed the connection"},
		{"larger messages", quick(rc, "-s", "100"), quick(rc, "-s", "101"), "receive of 100 bytes: ", ""},
		{"smaller messages", quick(rc, "-s", "100"), quick(rc, "-s", "99"), "sends 99 bytes and this side 100", ""},
		{"C server without a GID", noGID, quick(rc), "", "closed the connection"},
		{"C client without a GID", quick(rc), noGID, "has no GID", ""},
	} {
		t.Run(d.name, func(t *testing.T) {
			server, client := startPingpong(t, d.s, d.c)
			server.fails(d.server)
			client.fails(d.client)
		})
	}
}
