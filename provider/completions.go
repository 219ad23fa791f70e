package provider

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/goverbs/verbs"
)

// Completions is the common part of completion queues: a [Gate], the word that shows the next
// completion, and completions that the device did not write. CQs embed it. They set Word, Mask and
// None when they are made and after they have taken completions.
type Completions struct {
	Gate
	// There are no completions as long as Word.Load()&Mask == None. uverbs looks there before it
	// calls Take, so that polls of an empty queue are short.
	Word       *atomic.Uint32
	Mask, None uint32

	// Taker is the lock of Take of a SingleThreaded queue, which Exclude needs: Take locks it first
	// then, without a call, and ends with Allow in place of Unlock.
	Taker Gate

	// Ready reports whether polls may return an added completion yet; nil: always. It is called with
	// the queue's lock, and set before the queue is used.
	Ready func(*verbs.WC) bool

	special atomic.Uint32 // not 0 if the queue is closed, or has added completions
	addedMu sync.Mutex    // locked before the queue
	added   []addition
}

// addition is a completion that the device did not write.
type addition struct {
	wc verbs.WC
	of *Requests // of AddFlushed, or nil
}

// Common implements [CompletionQueue].
func (c *Completions) Common() *Completions { return c }

// Plain reports whether the queue is open and Take returns all its completions. The caller holds
// the lock.
func (c *Completions) Plain() bool { return c.special.Load() == 0 }

// Empty reports whether there is nothing to take from a queue that is Plain. The caller holds the
// lock.
func (c *Completions) Empty() bool { return c.Word.Load()&c.Mask == c.None }

// HasCompletions reports whether a poll would return a completion, or drop one that the program has no
// use for: of a QP that has been closed, or of a driver's own request.
func (c *Completions) HasCompletions() bool {
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	c.Lock()
	defer c.Unlock()
	return !c.stopped && c.nextReady(0) < len(c.added) || !c.Closed && !c.Empty()
}

// nextReady returns the index of the first added completion from i on that polls may return.
func (c *Completions) nextReady(i int) int {
	for c.Ready != nil && i < len(c.added) && !c.Ready(&c.added[i].wc) {
		i++
	}
	return i
}

// Exclude keeps out Take until Allow, also if the queue is SingleThreaded: QPs that are reset, closed
// or lost drop completions, in other goroutines.
func (c *Completions) Exclude() {
	if c.SingleThreaded {
		c.Taker.Lock()
	} else {
		c.Lock()
	}
}

// Allow ends Exclude or Take.
func (c *Completions) Allow() {
	if c.SingleThreaded {
		c.Taker.Unlock()
	} else {
		c.Unlock()
	}
}

// Add adds completions, which polls return after those of the device. It may be called while
// others use the queue.
func (c *Completions) Add(wcs ...verbs.WC) {
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	c.addLocked(wcs)
	c.special.Store(1)
}

// AddFlushed is Add of the flushed completion of a request with an ID to a QP in the error state. q is
// the queue, which refuses the request with [verbs.ErrQueueFull] if the result is false: as many of its
// completions as it holds requests have not been polled. Without a limit, a program that posts until
// the queue is full would never end.
func (c *Completions) AddFlushed(q *Requests, size uint32, id uint64, op verbs.WCOpcode) bool {
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	if q.flushed >= int(size) {
		return false
	}
	q.flushed++
	c.added = append(c.added, addition{verbs.WC{ID: id, Status: verbs.WCFlushErr, Opcode: op, QPNum: q.Num}, q})
	c.special.Store(1)
	return true
}

func (c *Completions) addLocked(wcs []verbs.WC) {
	for _, wc := range wcs {
		c.added = append(c.added, addition{wc: wc})
	}
}

// AddBefore adds the completions that take returns before those that have been added. Polls meanwhile see
// either all of them or none.
func (c *Completions) AddBefore(take func() []verbs.WC) {
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	later := c.added
	c.added = nil
	c.addLocked(take())
	c.added = append(c.added, later...)
	c.special.Store(1)
}

// Stop implements [Queue].
func (c *Completions) Stop(stop bool) {
	c.addedMu.Lock() // so that no poll resets special before the queue is stopped
	defer c.addedMu.Unlock()
	c.special.Store(1)
	c.Gate.Stop(stop)
}

// Fail is [Gate.Fail].
func (c *Completions) Fail(err error) {
	c.special.Store(1)
	c.Gate.Fail(err)
}

// Drain moves the completions that a lost device has written to the added ones, before its queues
// are flushed. Polls meanwhile see either all of them or none.
func Drain(q CompletionQueue) {
	c := q.Common()
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	c.special.Store(1)
	var wcs [32]verbs.WC
	for {
		c.Lock()
		if c.Closed {
			c.Unlock()
			return
		}
		n := q.Take(wcs[:]) // unlocks
		if n == 0 {
			return
		}
		c.addLocked(wcs[:n])
	}
}

// Detach fails the queue of a lost device, which writes no more completions, and adds the
// completions of [Flusher]. It does nothing to a queue that is SingleThreaded or has been stopped.
func (c *Completions) Detach(wcs []verbs.WC) {
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	c.special.Store(1)
	if c.Lose() {
		c.addLocked(wcs)
	}
	c.Unlock()
}

// Poll moves up to len(wcs) completions of a queue into wcs and returns how many. uverbs calls it
// if the queue is locked, or is not Plain.
func Poll(q CompletionQueue, wcs []verbs.WC) (n int) {
	c := q.Common()
	c.Lock() // nothing below panics
	if c.Plain() {
		return q.Take(wcs)
	}
	c.Unlock()
	c.addedMu.Lock()
	defer c.addedMu.Unlock()
	c.Lock()
	if !c.Closed {
		n = q.Take(wcs)
		c.Lock()
	}
	if !c.stopped {
		for i := 0; n < len(wcs); n++ {
			if i = c.nextReady(i); i == len(c.added) {
				break
			}
			a := c.added[i]
			if i == 0 { // usually
				c.added = c.added[1:]
			} else {
				c.added = slices.Delete(c.added, i, i+1)
			}
			if a.of != nil {
				a.of.flushed--
			}
			wcs[n] = a.wc
		}
	}
	if len(c.added) == 0 && !c.Closed {
		c.special.Store(0)
	}
	c.Unlock()
	return n
}
