package rsock

import (
	"fmt"
	"slices"
	"testing"
)

// TestSignals posts messages of a size until some are signaled, and compares which, and with which
// requests and bytes of the ring their completions free. The send queue takes 40 requests, the ring
// has 4000 bytes.
func TestSignals(t *testing.T) {
	for _, r := range []struct {
		iwarp, inline bool
		size          int
		which         signal
		at            []int // numbers of the messages that are signaled, from 1
	}{
		{false, true, 8, signalLast, []int{10, 20, 30}},  // a quarter of the queue
		{false, false, 8, signalLast, []int{10, 20, 30}}, // the same
		{false, false, 400, signalLast, []int{3, 6, 9}},  // a quarter of the ring
		{false, false, 1000, signalLast, []int{1, 2, 3}}, // each is one
		{true, true, 8, signalLast, []int{5, 10, 15}},    // two requests a message
		{true, false, 8, signalFirst, []int{1, 2, 3}},    // siw must copy them
		{true, false, 1000, signalFirst, []int{1, 2, 3}}, //
	} {
		t.Run(fmt.Sprintf("iwarp=%v,inline=%v,%d", r.iwarp, r.inline, r.size), func(t *testing.T) {
			var s signals
			s.start(40, 4000, r.iwarp)
			const begin = 1<<32 - 1200 // the completion has the lower half of the head
			s.posted, s.done, s.head = countMask-2, countMask-2, begin
			head := uint64(begin)
			var at []int
			for i := 1; len(at) < len(r.at) && i < 100; i++ {
				if s.free() < s.cost {
					t.Fatalf("message %d: the queue is full, and nothing signaled", i)
				}
				if !r.inline {
					head += uint64(r.size)
				}
				which, id := s.post(r.inline, head)
				if which == signalNone {
					continue
				}
				if at = append(at, i); which != r.which || s.completed(id) != uint32(head) {
					t.Errorf("message %d: signal %d, head %d", i, which, uint32(id))
				}
				left := uint32(0) // the SEND behind the RDMA WRITE
				if which == signalFirst {
					left = 1
				}
				if used := s.slots - s.free(); used != left {
					t.Errorf("message %d: %d requests are not complete", i, used)
				}
			}
			if !slices.Equal(at, r.at) {
				t.Errorf("signaled: %v, want %v", at, r.at)
			}
		})
	}
}

// TestCredits tests which messages may be sent, also when their numbers begin again.
func TestCredits(t *testing.T) {
	var c credits
	c.start(20)
	c.seq = 0xfffb
	c.limit = c.seq + 20
	if n := c.left(); n != 15 { // a quarter is reserved
		t.Errorf("%d credits at the start", n)
	}
	c.seq += 15
	if n := c.left(); n != 0 {
		t.Errorf("%d credits when 5 are reserved", n)
	}
	for limit, ok := range map[uint16]bool{c.seq: true, c.seq + 20: true, c.seq + 21: false, c.seq - 1: false} {
		if err := c.grant(limit); (err == nil) != ok {
			t.Errorf("credits up to %d, at %d: %v", limit, c.seq, err)
		}
	}
}
