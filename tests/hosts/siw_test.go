package hosts

import (
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

// MissedData watches the connections of a port of siw until all have ended and nothing listens, and
// reports whether siw has overlooked what a peer sent immediately (see docs/kernels.md): it stays
// unread until more arrives, but C programs send no more.
func (*Peer) MissedData(port uint16, missed *bool) error {
	for n := 0; n < 10; time.Sleep(50 * time.Millisecond) {
		sockets, err := labtest.TCPSockets()
		if err != nil {
			return err
		}
		open, unread := false, false
		for _, s := range sockets {
			if s.Local.Port() == port && (s.State == labtest.TCPEstablished || s.State == labtest.TCPListen) {
				open, unread = true, unread || s.State == labtest.TCPEstablished && s.Unread > 0
			}
		}
		if !open {
			return nil
		}
		if n++; !unread {
			n = 0
		}
	}
	*missed = true
	return nil
}

func (p *peer) missedData(t *testing.T, host int, port uint16) (missed bool) {
	t.Helper()
	if host == 2 {
		p.call(t, "MissedData", port, &missed)
	} else if err := new(Peer).MissedData(port, &missed); err != nil {
		t.Fatal(err)
	}
	return missed
}
