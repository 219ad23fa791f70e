package interop

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// unread is how many bytes that have come on connections to an address TCP still
// has. siw takes them as they come.
func unread(t *testing.T, addr string) (n int) {
	t.Helper()
	ip := netip.MustParseAddr(addr).As4()
	want := fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip[:]))
	lines := bufio.NewScanner(bytes.NewReader(labtest.Must(os.ReadFile("/proc/net/tcp"))(t)))
	const established = 1
	lines.Scan() // the names of the columns
	for lines.Scan() {
		var line, local, remote, port string
		var state, out, in int
		if _, err := fmt.Sscanf(lines.Text(), "%s %8s:%4s %s %x %x:%x", &line, &local, &port, &remote, &state, &out, &in); err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		if state == established && local == want {
			n += in
		}
	}
	return n
}

// overlooked says that siw has accepted a connection and overlooked what the peer
// sent at once. It stays unread until more comes, for which C's programs wait in
// vain, whoever accepts: there is nothing but to begin anew.
func overlooked(t *testing.T, device string) bool {
	t.Helper()
	for range 10 {
		if device != labtest.SIW || unread(t, labtest.AddrOf(device)) == 0 {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Log("siw has overlooked what C sent first")
	return true
}

// rsJoin has C's program dial a listener of ours.
func rsJoin(t *testing.T, device string, opt rsock.Options, dial func(port string) *program) (*program, *rsock.Conn) {
	t.Helper()
	for try := 1; ; try++ {
		l, port := rsListen(t, device, opt)
		p := dial(port)
		conn := p.accepted(l)
		if !overlooked(t, device) || try == 10 {
			return p, conn
		}
		p.kill()
		conn.Close()
	}
}
