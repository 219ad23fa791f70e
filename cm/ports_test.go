//go:build linux

package cm_test

import (
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// TestPortsInUse listens on any free port while TCP uses some. The connection manager
// chooses at random from a range, which is made small here.
func TestPortsInUse(t *testing.T) {
	labtest.RequireKernel(t)
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	old := labtest.Must(os.ReadFile(file))(t)
	defer os.WriteFile(file, old, 0)
	if err := os.WriteFile(file, []byte("40000 40009"), 0); err != nil {
		t.Fatal(err)
	}
	host := labtest.AddrOf(labtest.SIW)
	for port := 40000; port < 40003; port++ {
		l := labtest.Must(net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))))(t)
		defer l.Close()
	}
	for range 20 {
		l, err := cm.Listen(t.Context(), host+":0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
	}
}
