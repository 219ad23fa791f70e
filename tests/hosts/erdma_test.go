package hosts

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// The emulated erdma of each machine, and its addresses.
const (
	erdma     = "erdma_0"
	erdmaAddr = "10.9.4.%d"
)

// dialERDMA is dialPeer for two machines with an erdma each, whose links are one wire.
func dialERDMA(t *testing.T) *peer {
	t.Helper()
	p := dialPeer(t)
	if _, err := os.Stat("/sys/class/infiniband/" + erdma); err != nil {
		t.Skip("needs adapters: run by make hosts, or with LAB_NIC=erdma")
	}
	return p
}

// TestERDMA runs C programs on both machines, each of which is the server once. rping and rstream check
// the data.
func TestERDMA(t *testing.T) {
	p := dialERDMA(t)
	port := 7400
	for _, r := range []struct {
		server, client string // with a %s for the server's address
	}{
		{"rping -s -V -S 60000 -C 20 -a %s", "rping -c -V -S 60000 -C 20 -a %s"},
		{"ucmatose -c 5 -C 10 -S 20000 -b %s", "ucmatose -c 5 -C 10 -S 20000 -s %s"},
		{"rstream -T v -I 5 -C 10 -S 65536 -b %s", "rstream -T v -I 5 -C 10 -S 65536 -s %s"},
		{"ib_write_bw -F -d erdma_0 -R -n 100 -s 65536", "ib_write_bw -F -d erdma_0 -R -n 100 -s 65536 %s"},
		{"ib_read_lat -F -d erdma_0 -R -e -n 50 -s 4096", "ib_read_lat -F -d erdma_0 -R -e -n 50 -s 4096 %s"},
		{"ib_atomic_bw -F -d erdma_0 -R -n 50", "ib_atomic_bw -F -d erdma_0 -R -n 50 %s"},
	} {
		name, _, _ := strings.Cut(r.server, " ")
		for host := 1; host <= 2; host++ {
			t.Run(fmt.Sprintf("%s, served by host %d", name, host), func(t *testing.T) {
				port++
				command := func(format string) []string {
					if strings.Contains(format, "%s") {
						format = fmt.Sprintf(format, fmt.Sprintf(erdmaAddr, host))
					}
					first, rest, _ := strings.Cut(format, " ")
					return strings.Fields(fmt.Sprintf("%s -p %d %s", first, port, rest))
				}
				served := p.start(t, host, command(r.server)...)
				p.awaitCM(t, host, fmt.Sprint(port))
				p.run(t, 3-host, command(r.client)...)
				served()
			})
		}
	}
}

// TestERDMANVMe is TestConnectXNVMe on erdma.
func TestERDMANVMe(t *testing.T) { testNVMe(t, dialERDMA(t), fmt.Sprintf(erdmaAddr, 2)) }
