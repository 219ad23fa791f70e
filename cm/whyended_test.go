package cm

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestWhyEnded waits for the event that explains an EINVAL of the connection manager. On a machine
// with much to do it comes seconds later.
func TestWhyEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &Endpoint{id: &ID{events: newQueue(new(manager))}}
		go func() {
			time.Sleep(3 * time.Second)
			e.id.events.push(Event{ID: e.id, Type: Rejected, Status: rejectConsumer})
		}()
		if err := e.whyEnded(t.Context(), syscall.EINVAL); !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "rejected by the peer (invalid argument)") {
			t.Error(err)
		}
		begin := time.Now()
		err := e.whyEnded(t.Context(), stateError{syscall.EINVAL})
		if !errors.Is(err, syscall.EINVAL) || err.Error() != "the peer has given up: invalid argument" || time.Since(begin) != eventDelay {
			t.Errorf("without an event: %v after %v", err, time.Since(begin))
		}
	})
}
