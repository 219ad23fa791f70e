//go:build linux && !nordma

package uverbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/mmap"
)

// TestLateEvent reads an event of a CQ that was closed after the event was sent: the
// event is dropped.
func TestLateEvent(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	file, err := host.NewEventFile(fds[0], "events")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	const open, closed = 7, 8
	c := newChannel(file)
	cq := c.addCQ(open, nil)
	c.removeCQ(c.addCQ(closed, nil))
	events := []abi.IbUverbsCompEventDesc{{CqHandle: closed}, {CqHandle: open}}
	for i := range events {
		if _, err := unix.Write(fds[1], mmap.Bytes(&events[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.wait(t.Context(), cq); err != nil {
		t.Error(err)
	}
	if len(c.pending) != 0 {
		t.Errorf("events are left: %v", c.pending)
	}
}
