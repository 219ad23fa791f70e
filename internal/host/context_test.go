//go:build linux && !nordma

package host

import (
	"context"
	"errors"
	"testing"
	"time"
)

// labelled is a context that cannot be compared: its interface holds a map.
type labelled struct {
	context.Context
	label any
}

// TestFollowContext checks that a file follows one context at a time, of any type: the end
// of the context of an earlier sleep does not end a sleep with another one.
func TestFollowContext(t *testing.T) {
	f, _ := pipe(t)
	op := into(make([]byte, 8))
	sleep := func(ctx context.Context, want error) {
		t.Helper()
		if err := f.Sleep(labelled{ctx, map[string]int{}}, time.Time{}, op); err != want {
			t.Errorf("%v, not %v", err, want)
		}
	}
	first, cancelFirst := context.WithCancel(t.Context())
	for range 2 {
		f.Wake()
		sleep(first, nil)
	}
	second, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancelFirst)
	time.AfterFunc(50*time.Millisecond, cancel)
	sleep(second, context.Canceled)
	sleep(first, context.Canceled)
	never := context.Background()
	time.AfterFunc(10*time.Millisecond, func() { f.Close() })
	if err := f.Sleep(never, time.Time{}, op); errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if f.stop != nil {
		t.Error("a closed file follows a context")
	}
}
