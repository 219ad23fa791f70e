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
			counts := " passed, 0 failed, "
			if labtest.Driver(t, d.Name) == "erdma" { // 44 and 37 in loopback, and with the peer
				counts = "\n88 passed, 0 failed, 74 refused\n"
			}
			for _, want := range []string{"passed    peer: SEND\n", "measured with peer\n", counts} {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			t.Log(out)
			p.run(t, 2, "pkill", "-INT", "-f", strings.Join(server, " "))
			served()
		})
	}
}
