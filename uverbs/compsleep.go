package uverbs

import (
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// sleep is the state of [CompChannel.Sleep], under the channel's lock.
type sleep struct {
	asleep bool
	woken  bool
	events int       // that did not come from the kernel
	until  time.Time // the file's deadline
	buf    [16]abi.IbUverbsCompEventDesc
}

// Sleep waits for an event of any of the channel's CQs, for [CompChannel.Wake],
// or until a time, if that is not zero. It returns how many events there were,
// none after Wake, and [os.ErrDeadlineExceeded] when the time has come. The
// events do not say whose they are: poll, and arm, every CQ that was armed.
//
// This is for programs that wait often and for several things at once: it
// allocates nothing and takes no context. One goroutine may call it at a time,
// and nobody may use the channel's or its CQs' other ways to wait.
func (c *CompChannel) Sleep(until time.Time) (events int, err error) {
	ch := c.ch
	s := &ch.sleep
	ch.mu.Lock()
	if s.woken {
		events = s.rise()
		ch.mu.Unlock()
		return events, nil
	}
	if s.until != until {
		if err := ch.file.SetDeadline(until); err != nil {
			ch.mu.Unlock()
			return 0, c.obj.fail("wait on", ErrClosed)
		}
		s.until = until
	}
	s.asleep = true
	ch.mu.Unlock()

	n, err := ch.file.ReadPlain(mmap.Bytes(&s.buf))

	ch.mu.Lock()
	s.asleep = false
	woken := s.woken
	events = s.rise()
	ch.mu.Unlock()
	switch {
	case err == nil:
		return events + n/len(mmap.Bytes(&s.buf[0])), nil
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return 0, c.obj.fail("wait on", err)
	case woken:
		return events, nil
	}
	return 0, os.ErrDeadlineExceeded
}

// rise takes what woke the sleeper.
func (s *sleep) rise() (events int) {
	events = s.events
	s.events, s.woken = 0, false
	return events
}

// Wake ends the [CompChannel.Sleep] that is under way, or else the next.
func (c *CompChannel) Wake() {
	c.ch.mu.Lock()
	c.ch.wake()
	c.ch.mu.Unlock()
}

// wake is Wake with the lock held.
func (c *channel) wake() {
	s := &c.sleep
	s.woken = true
	if s.asleep {
		s.until = time.Unix(1, 0)
		c.file.SetDeadline(s.until)
	}
}
