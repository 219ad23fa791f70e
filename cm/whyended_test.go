package cm

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs/internal/unix"
)

// TestWhyEnded waits for the event that explains an EINVAL of the connection manager. On a machine with
// much to do it comes seconds later.
func TestWhyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Endpoint{id: new(ID)}
		e.id.channel.Store(new(Channel))
		go func() {
			time.Sleep(3 * time.Second)
			e.id.push(Event{Type: Rejected, Status: rejectConsumer})
		}()
		if err := e.whyEnded(t.Context(), unix.EINVAL); !errors.Is(err, unix.ECONNREFUSED) || !strings.Contains(err.Error(), "rejected by the peer (invalid argument)") {
			t.Error(err)
		}
		begin := time.Now()
		err := e.whyEnded(t.Context(), stateError{unix.EINVAL})
		if !errors.Is(err, unix.EINVAL) || err.Error() != "the peer has given up: invalid argument" || time.Since(begin) != eventDelay {
			t.Errorf("without an event: %v after %v", err, time.Since(begin))
		}
	})
}
