package uverbs

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// TestLateEvent reads an event of a CQ that has been closed since it was sent:
// nothing of it is left.
func TestLateEvent(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fds[1])
	file, err := sys.NewEventFile(fds[0], "events")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ctx, _ := newTree()
	r := newRegistry(ctx.tree)
	defer r.close()
	const open, closed = 7, 8
	r.add(open, entry{obj: newObject("dev0", name{format: "CQ"}, func() error { return nil }, ctx)})
	c := &channel{file: file, cqs: r, turn: make(chan struct{}, 1), pending: map[uint64]int{}}
	events := []abi.IbUverbsCompEventDesc{{CqHandle: closed}, {CqHandle: open}}
	for i := range events {
		if _, err := unix.Write(fds[1], mmap.Bytes(&events[i])); err != nil {
			t.Fatal(err)
		}
	}
	if id, err := c.wait(t.Context(), open, nil); id != open || err != nil {
		t.Errorf("event of CQ %d: %v", id, err)
	}
	if len(c.pending) != 0 {
		t.Errorf("events are left: %v", c.pending)
	}
}
