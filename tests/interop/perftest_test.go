package interop

import (
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestPerftestPeer makes verbs perf and perftest's ib_send_lat each other's peers, which they
// cannot be: verbs perf names the other.
func TestPerftestPeer(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device)
		t.Run("server", func(t *testing.T) {
			c := start(t, "ib_send_lat", "-F", "-R", "-d", device, "-p", "18571")
			labtest.WaitListening(t, "18571")
			client := start(t, built(t, "verbs"), "perf", "send", "lat", addr+":18571")
			client.Fails("the server is not verbs perf but perhaps perftest")
			c.Kill()
		})
		t.Run("nothing", func(t *testing.T) {
			start(t, built(t, "verbs"), "perf", "send", "lat", addr+":18572").Fails("start verbs perf server there")
		})
		t.Run("client", func(t *testing.T) {
			server := start(t, built(t, "verbs"), "perf", "server", "-d", device, "-p", "18573")
			<-server.Printed
			c := start(t, "ib_send_lat", "-F", "-R", "-d", device, "-p", "18573", addr)
			<-c.Done
			server.Kill()
			if !server.Out.Has("it is not verbs perf but perhaps perftest") {
				t.Errorf("the server says\n%s", &server.Out)
			}
		})
	})
}
