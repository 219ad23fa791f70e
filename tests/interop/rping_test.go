package interop

import (
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestRping runs rping's protocol with C on either side: 100 rounds, each
// client comparing what comes back.
func TestRping(t *testing.T) {
	labtest.Require(t)
	verbs := built(t, "verbs")
	rounds := func(side ...string) []string {
		return append(side, "-a", labtest.Addr, "-V", "-C", "100", "-p")
	}
	goServer, goClient := append([]string{verbs}, rounds("ping", "-s")...), append([]string{verbs}, rounds("ping", "-c")...)
	cServer, cClient := rounds("rping", "-s"), rounds("rping", "-c")
	for _, c := range []struct {
		name           string
		server, client []string
		port           string
		extra          []string
	}{
		{"C server, Go client", cServer, goClient, "7301", nil},
		{"Go server, C client", goServer, cClient, "7302", nil},
		{"Go server, Go client", goServer, goClient, "7303", nil},
		{"C server, Go client, large", cServer, goClient, "7304", []string{"-S", "65535"}},
		{"Go server, C client, large", goServer, cClient, "7305", []string{"-S", "65535"}},
		{"C server, Go client, small", cServer, goClient, "7306", []string{"-S", "27"}},
		{"Go server, C client, small", goServer, cClient, "7307", []string{"-S", "27"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(side []string) *program {
				return start(t, side[0], append(append(side[1:len(side):len(side)], c.port), c.extra...)...)
			}
			server := run(c.server)
			listening(t, c.port)
			run(c.client).wait()
			server.wait()
		})
	}
}

// TestRpingContent shows what a Go server received from C, round by round.
func TestRpingContent(t *testing.T) {
	labtest.Require(t)
	server := start(t, built(t, "verbs"), "ping", "-s", "-v", "-a", labtest.Addr, "-p", "7310")
	listening(t, "7310")
	client := start(t, "rping", "-c", "-v", "-V", "-C", "3", "-a", labtest.Addr, "-p", "7310")
	sent, got := client.wait(), server.wait()
	n := 0
	for line := range strings.Lines(sent) {
		if data, ok := strings.CutPrefix(line, "ping data: "); ok {
			if !strings.Contains(got, "server ping data: "+data) {
				t.Errorf("C sent %q, the server printed %q", data, got)
			}
			n++
		}
	}
	if n != 3 {
		t.Errorf("C printed %d rounds:\n%s", n, sent)
	}
}
