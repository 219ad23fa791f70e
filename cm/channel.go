package cm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/event"
	"github.com/goverbs/verbs/internal/unix"
	"github.com/goverbs/verbs/internal/virtual"
	"github.com/goverbs/verbs/mmap"
)

// Channel is a connection to rdma_cm (rdma_create_event_channel(3)).
// The caller must close it after the IDs that were made on it.
type Channel struct {
	node string // rdma_cm's device: the kernel's or the virtual one
	file *event.File
	loop *Loop         // receives the events instead of the dispatcher and the IDs
	done chan struct{} // closed when the dispatcher has ended
	num  uint64

	thread thread

	// deliverMu is held from reading an event until it is delivered: its holder
	// knows that no event is in delivery.
	deliverMu sync.Mutex
	reader    *eventReader       // nil when the dispatcher has ended
	readFunc  func(fd int) error // readEvent, as a func value: no allocation per call
	onUnused  func()             // called with mu held when no IDs are left; nil unless a Transport owns the channel

	mu  sync.Mutex
	ids map[uint64]*ID // by the uid that the kernel has for the ID or for one of its groups
	err error          // why the channel has ended
}

// lastNumber numbers channels, IDs and groups. No number is used twice, so an ID
// keeps its number when it moves to another channel.
var lastNumber atomic.Uint64

// NewChannel opens a channel to the rdma_cm of [DefaultTransport].
func NewChannel() (*Channel, error) { return defaultTransport.NewChannel() }

// NewChannel opens a channel to the rdma_cm that the transport uses. The caller must close it:
// it does not become the transport's.
func (t *Transport) NewChannel() (*Channel, error) {
	c, err := openChannel(t.node())
	if err != nil {
		return nil, err
	}
	c.file.Relays = true
	go c.dispatch()
	return c, nil
}

// openChannel opens a channel whose events are not read yet.
func openChannel(node string) (*Channel, error) {
	if node == virtual.CM {
		if err := virtual.Prepare(); err != nil {
			return nil, fail("open", node, err)
		}
	}
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch err {
	case syscall.ENOENT, syscall.ENXIO, syscall.ENODEV:
		err = fmt.Errorf("%w: %w", verbs.ErrNoCM, err)
	}
	if err != nil {
		return nil, fail("open", node, err)
	}
	file, err := event.NewFile(fd, node)
	if err != nil {
		return nil, fail("open", node, err)
	}
	g, err := newEventReader()
	if err != nil {
		file.Close()
		return nil, fail("open", node, err)
	}
	c := &Channel{node: node, file: file, done: make(chan struct{}), num: lastNumber.Add(1), reader: g, ids: map[uint64]*ID{}}
	c.thread.init()
	c.readFunc = c.readEvent
	return c, nil
}

// Close closes the channel and so destroys the IDs that are still on it. Calls that wait
// for events fail with [verbs.ErrClosed].
func (c *Channel) Close() error {
	if c == nil {
		return verbs.ErrClosed
	}
	c.file.Close()
	c.thread.stop()
	if c.loop != nil {
		c.end(verbs.ErrClosed)
		c.loop.poll.Close()
	} else {
		<-c.done
	}
	return nil
}

// dispatch passes events to their IDs until the channel is closed.
func (c *Channel) dispatch() {
	defer close(c.done)
	for {
		err := c.file.Sleep(context.Background(), time.Time{}, c.readFunc)
		if errors.Is(err, errCredentials) {
			select {
			case <-time.After(retryRenewal):
				err = nil
			case <-c.thread.done:
				err = verbs.ErrClosed
			}
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// retryRenewal is the delay before the dispatcher tries again to renew a channel.
const retryRenewal = time.Second

// end ends the IDs of a channel that is closed or whose events cannot be read any
// more. It may be called again.
func (c *Channel) end(why error) {
	c.deliverMu.Lock()
	if c.reader != nil {
		c.reader.msg.free()
		c.reader = nil
	}
	c.deliverMu.Unlock()
	c.mu.Lock()
	ids := slices.Collect(maps.Values(c.ids))
	c.err = cmp.Or(c.err, why)
	c.notifyUnused()
	c.mu.Unlock()
	for _, id := range ids {
		id.end(why)
	}
}

// hasEnded reports whether the channel has stopped delivering events.
func (c *Channel) hasEnded() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// countIDs returns the number of IDs that are not closed.
func (c *Channel) countIDs() (n int) {
	c.deliverMu.Lock() // so that no event is in delivery whose NewID the listener will refuse
	defer c.deliverMu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for number, id := range c.ids {
		if number == id.uid { // not the number of a group
			n++
		}
	}
	return n
}

// notifyUnused calls onUnused if there are no IDs. The caller holds c.mu.
func (c *Channel) notifyUnused() {
	if c.onUnused != nil && len(c.ids) == 0 {
		c.onUnused()
	}
}

// readEvent reads an event and delivers it, or returns EAGAIN.
func (c *Channel) readEvent(fd int) error {
	c.deliverMu.Lock()
	defer c.deliverMu.Unlock()
	return c.readEventLocked(fd)
}

func (c *Channel) readEventLocked(fd int) error {
	if c.reader == nil {
		return verbs.ErrClosed
	}
	for {
		times, _ := c.thread.renewed()
		err := c.run(c.reader.msg, mmap.Bytes(&c.reader.resp))
		if err == nil {
			c.deliver(&c.reader.resp)
		}
		if err != syscall.EAGAIN {
			return err
		}
		// The former files have no event left, unless one has come since.
		if _, old := c.thread.renewed(); !old || c.thread.closeOld(times) {
			return err
		}
	}
}

// poll reads and delivers an event, if there is one.
func (c *Channel) poll() { c.file.Try(c.readFunc) }

// drain delivers all pending events. The caller holds c.deliverMu.
func (c *Channel) drain() error {
	return c.file.Try(func(fd int) error {
		for c.readEventLocked(fd) == nil {
		}
		return nil
	})
}

// eventReader is the command that reads an event, GET_EVENT, and its response.
type eventReader struct {
	msg  message
	resp abi.RdmaUcmEventResp
}

func newEventReader() (*eventReader, error) {
	g := new(eventReader)
	var req abi.RdmaUcmGetEvent
	var err error
	g.msg, err = encode(abi.RDMA_USER_CM_CMD_GET_EVENT, mmap.Bytes(&req), &req.Response, len(mmap.Bytes(&g.resp)))
	return g, err
}

func (c *Channel) deliver(r *abi.RdmaUcmEventResp) {
	c.thread.renewMu.RLock()
	old := len(c.thread.old) > 0
	c.mu.Lock()
	id := c.ids[r.Uid]
	e := decodeEvent(r, id != nil && id.space.datagram())
	if e.Type == ConnectRequest {
		// The event has the listener's uid and the new connection's handle.
		space := PortSpaceTCP
		if id != nil {
			space = id.space
		}
		e.NewID = c.add(r.Id, space)
	}
	c.mu.Unlock()
	c.thread.renewMu.RUnlock()
	if old && e.NewID != nil {
		c.migrateNew(r.Id)
	}
	if id != nil && id.uid != r.Uid {
		id.pushGroup(r.Uid, e)
		return
	}
	if (id == nil || !c.enqueue(id, e)) && e.NewID != nil {
		e.NewID.Close() // the listener has just been closed, or its backlog is full
	}
}

// enqueue queues an event for an ID. It returns false if the ID refuses the event.
func (c *Channel) enqueue(id *ID, e Event) bool {
	e.ID = id
	if c.loop == nil {
		return id.push(e)
	}
	c.loop.push(e)
	return true
}

// add makes the ID for a kernel handle. The caller holds c.mu.
func (c *Channel) add(handle uint32, space PortSpace) *ID {
	id := &ID{uid: lastNumber.Add(1), handle: handle, space: space}
	id.channel.Store(c)
	if c.err != nil {
		id.end(c.err)
	} else {
		c.ids[id.uid] = id
	}
	return id
}
