package interop

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// unread returns how many received bytes TCP still holds on connections to an address. siw
// reads them as they arrive.
func unread(t *testing.T, addr string) (n int) {
	t.Helper()
	ip := netip.MustParseAddr(addr).As4()
	want := fmt.Sprintf("%08X", binary.NativeEndian.Uint32(ip[:]))
	table := string(labtest.Must(os.ReadFile("/proc/net/tcp"))(t))
	_, table, _ = strings.Cut(table, "\n") // the names of the columns
	const established = 1
	for line := range strings.Lines(table) {
		var slot, local, port, remote string
		var state, out, in int
		if _, err := fmt.Sscanf(line, "%s %8s:%4s %s %x %x:%x", &slot, &local, &port, &remote, &state, &out, &in); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if state == established && local == want {
			n += in
		}
	}
	return n
}

// siwMissedData reports whether siw has accepted a connection and overlooked the data that the
// peer sent immediately. The data stays unread until more arrives, but C's programs send no
// more on either side, so the test must start again.
func siwMissedData(t *testing.T, device string) bool {
	t.Helper()
	if device != labtest.SIW {
		return false
	}
	for range 10 {
		if unread(t, labtest.AddrOf(device)) == 0 {
			return false
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Log("siw has overlooked what C sent first")
	return true
}
