package hosts

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestCheck runs verbs check with the peer's on each device.
func TestCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: run by make hosts")
	}
	p := dialPeer(t)
	program := labtest.Built(t, "verbs")
	host, _, _ := net.SplitHostPort(peerAddr)
	for i, d := range labtest.Must(uverbs.Devices())(t) {
		t.Run(d.Name, func(t *testing.T) {
			port := fmt.Sprint(18520 + i)
			server := []string{program, "check", "-s", "-d", d.Name, "-p", port}
			served := p.start(t, 2, server...)
			p.awaitTCP(t, 2, port)
			out := p.run(t, 1, program, "check", "-d", d.Name, "--duration", "20ms", net.JoinHostPort(host, port))
			if !strings.Contains(out, "passed    peer: SEND\n") || !strings.Contains(out, "measured with peer\n") {
				t.Error(out)
			}
			t.Log(out)
			p.run(t, 2, "pkill", "-INT", "-f", strings.Join(server, " "))
			served()
		})
	}
}
