package interop

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

const pingpongIters = 100

// pingpongPorts is the last TCP port used: every run has a port of its own.
var pingpongPorts = 18600

// pingpongSide is the command of one side, without the options of both sides.
type pingpongSide []string

// pingpongSides returns C's and Go's programs for a type, both with checks enabled.
func pingpongSides(t *testing.T, typ string) (c, verbs pingpongSide) {
	gid := labtest.Must(labtest.Open(t).FindGID(1, netip.MustParseAddr(labtest.Addr)))(t)
	c = pingpongSide{"ibv_" + typ + "_pingpong", "-c", "-d", labtest.RXE, "-g", strconv.Itoa(gid.Index)}
	return c, pingpongSide{built(t, "verbs"), "pingpong", typ, "-c", "-j", "-d", labtest.RXE}
}

func (s pingpongSide) isC() bool { return strings.HasPrefix(s[0], "ibv_") }

func (s pingpongSide) with(args ...string) []string { return append(s[1:len(s):len(s)], args...) }

// startPingpong starts a server, and a client when the server listens.
func startPingpong(t *testing.T, s, c pingpongSide, args ...string) (server, client *program) {
	t.Helper()
	pingpongPorts++
	args = append([]string{"-p", strconv.Itoa(pingpongPorts)}, args...)
	server = start(t, s[0], s.with(args...)...)
	server.listensTCP(pingpongPorts)
	return server, start(t, c[0], c.with(append(args, labtest.Addr)...)...)
}

// listensTCP waits until a socket listens on a port. It does not try to connect, as the
// server would accept that connection instead of the client's.
func (p *program) listensTCP(port int) {
	p.t.Helper()
	socket := regexp.MustCompile(fmt.Sprintf(`(?m)^ *\d+: [0-9A-F]+:%04X [0-9A-F]+:0000 0A `, port))
	for range 2000 {
		for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6", "/proc/1/net/tcp", "/proc/1/net/tcp6"} {
			if b, _ := os.ReadFile(table); socket.Match(b) {
				return
			}
		}
		select {
		case <-p.done:
			p.t.Fatalf("%v: %v", p.cmd, p.err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	p.t.Fatalf("nobody listens on TCP port %d", port)
}

// TestPingPong exchanges messages of many sizes. C's programs must succeed and find the data
// correct; Go's must have compared all of it. The sides poll and wait for events in turns: with
// the next size, each does what the other did.
func TestPingPong(t *testing.T) {
	labtest.Require(t)
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		sizes := []int{1, 100, 1024, 4096, 65536}
		if typ == "ud" { // limited by the port's MTU
			sizes = []int{1, 100, 1023, 1024}
		}
		if testing.Short() {
			sizes = sizes[len(sizes)-1:]
		}
		c, verbs := pingpongSides(t, typ)
		for i, size := range sizes {
			testPingPong(t, typ, "C server, Go client", c, verbs, size, i%2 == 0)
			testPingPong(t, typ, "Go server, C client", verbs, c, size, i%2 == 1)
		}
		testPingPong(t, typ, "Go server, Go client", verbs, verbs, 1000, false)
		testPingPong(t, typ, "Go server, Go client", verbs, verbs, 1000, true)
	}
}

func testPingPong(t *testing.T, typ, who string, s, c pingpongSide, size int, events bool) {
	args, wait := []string{"-n", strconv.Itoa(pingpongIters), "-s", strconv.Itoa(size)}, "poll"
	if events {
		args, wait = append(args, "-e"), "events"
	}
	t.Run(fmt.Sprintf("%s/%s/%d bytes/%s", typ, who, size, wait), func(t *testing.T) {
		server, client := startPingpong(t, s, c, args...)
		checkPingPong(t, typ, size, labtest.Addr, c, client.wait())
		checkPingPong(t, typ, size, labtest.Addr, s, server.wait())
	})
}

// checkPingPong checks the output of a side. The address is that of Go's.
func checkPingPong(t *testing.T, typ string, size int, addr string, s pingpongSide, out string) {
	t.Helper()
	if s.isC() {
		if strings.Contains(out, "invalid data") || !strings.Contains(out, "usec/iter") {
			t.Errorf("%v printed\n%s", s, out)
		}
		return
	}
	var got struct {
		Type                 string
		Local                []struct{ GID string }
		Size, Iters, Checked int
		Usec                 float64 `json:"usec_per_iter"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatalf("%v: %v\n%s", s, err, out)
	}
	// A server cannot check what C sends first on each QP.
	qps := 1
	if typ == "srq" {
		qps = 16
	}
	if got.Type != typ || got.Size != size || got.Iters != pingpongIters || got.Usec <= 0 ||
		len(got.Local) != qps || got.Local[0].GID != "::ffff:"+addr || got.Checked < pingpongIters-qps {
		t.Errorf("%v printed\n%s", s, out)
	}
}

// TestPingPongText checks that Go prints the same lines as C, except for numbers.
func TestPingPongText(t *testing.T) {
	labtest.Require(t)
	c, verbs := pingpongSides(t, "rc")
	verbs = pingpongSide{verbs[0], "pingpong", "rc"} // without checks, and with the default device and GID
	server, client := startPingpong(t, c, verbs, "-n", "10")
	numbers := regexp.MustCompile(`0x[0-9a-f]+|\d+\.\d+ `)
	got, want := numbers.ReplaceAllString(client.wait(), "N"), numbers.ReplaceAllString(server.wait(), "N")
	if got != want || strings.Count(got, "\n") != 4 {
		t.Errorf("Go printed\n%s, C\n%s", got, want)
	}
}

// TestPingPongDefault checks that rc is the default, and that a client without checks sends
// back what it receives, as C does.
func TestPingPongDefault(t *testing.T) {
	labtest.Require(t)
	_, verbs := pingpongSides(t, "rc")
	server, client := startPingpong(t, verbs, pingpongSide{verbs[0], "pingpong"}, "-n", strconv.Itoa(pingpongIters), "--gid-idx", "2")
	if out := client.wait(); !strings.Contains(out, "GID fd00:9::1\n") {
		t.Errorf("the client printed\n%s", out)
	}
	if out := server.wait(); !strings.Contains(out, fmt.Sprintf(`"checked": %d`, pingpongIters-1)) {
		t.Errorf("the server printed\n%s", out)
	}
}
