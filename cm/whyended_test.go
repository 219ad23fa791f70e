package cm

import (
	"context"
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
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin = time.Now()
		if err := e.whyEnded(ctx, stateError{syscall.EINVAL}); !errors.Is(err, context.Canceled) || time.Since(begin) != time.Second {
			t.Errorf("cancelled: %v after %v", err, time.Since(begin))
		}
	})
}
