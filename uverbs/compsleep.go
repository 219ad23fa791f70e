package uverbs

import (
	"errors"
	"os"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// sleep is the state of rest, under the channel's lock.
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
// allocates nothing and takes no context. One goroutine may call it at a time, and no
// other method that waits for the channel or its CQs may be used.
func (c *CompChannel) Sleep(until time.Time) (events int, err error) {
	n, err := c.ch.rest(until)
	c.ch.mu.Lock()
	n += c.ch.sleep.events
	c.ch.sleep.events = 0
	c.ch.mu.Unlock()
	switch {
	case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
		err = c.obj.fail("wait on", err)
	case err == nil && n == 0: // woken, maybe by the end of a CQ before the channel's
		if err = c.obj.enter("wait on"); err == nil {
			c.obj.exit()
		}
	}
	return n, err
}

// rest waits for events from the kernel, for wake, or until a time, and returns
// how many there are in buf. One goroutine may call it at a time.
func (c *channel) rest(until time.Time) (n int, err error) {
	s := &c.sleep
	c.mu.Lock()
	if s.woken {
		s.woken = false
		c.mu.Unlock()
		return 0, nil
	}
	if s.until != until {
		if err := c.file.SetDeadline(until); err != nil {
			c.mu.Unlock()
			return 0, verbs.ErrClosed
		}
		s.until = until
	}
	s.asleep = true
	c.mu.Unlock()

	n, err = c.file.ReadPlain(mmap.Bytes(&s.buf))

	c.mu.Lock()
	defer c.mu.Unlock()
	woken := s.woken
	s.asleep, s.woken = false, false
	switch {
	case err == nil:
		n /= len(mmap.Bytes(&s.buf[0]))
		c.counted(n)
		return n, nil
	case woken && errors.Is(err, os.ErrDeadlineExceeded):
		return 0, nil
	}
	return 0, err
}

// Wake ends the [CompChannel.Sleep] that is under way, or else the next.
func (c *CompChannel) Wake() { c.ch.wakeUp() }

func (c *channel) wakeUp() {
	c.mu.Lock()
	c.wake()
	c.mu.Unlock()
}

// wake ends the rest that is under way, or else the next. mu is held.
func (c *channel) wake() {
	s := &c.sleep
	s.woken = true
	if s.asleep {
		s.until = time.Unix(1, 0)
		c.file.SetDeadline(s.until)
	}
}
