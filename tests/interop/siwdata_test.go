package interop

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// unread returns how many received bytes TCP still holds on connections to an address.
func unread(t testing.TB, addr string) (n int) {
	t.Helper()
	for _, s := range labtest.Must(labtest.TCPSockets())(t) {
		if s.State == labtest.TCPEstablished && s.Local.Addr().String() == addr {
			n += s.Unread
		}
	}
	return n
}

// siwMissedData reports whether siw has accepted a connection and overlooked the data that the
// peer sent immediately. The data stays unread until more arrives, but C's programs send no
// more on either side, so the test must start again.
func siwMissedData(t testing.TB, device string) bool {
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
