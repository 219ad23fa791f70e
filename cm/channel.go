package cm

import (
	"context"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/mmap"
)

// Channel is a connection to the kernel's rdma_cm (rdma_create_event_channel(3)).
// Its owner closes it after the IDs made on it.
type Channel struct {
	file *sys.EventFile
	done chan struct{} // closed when the dispatcher has ended

	mu   sync.Mutex
	next uint64
	ids  map[uint64]*ID // by the number the kernel knows them by
}

// NewChannel opens a channel.
func NewChannel() (*Channel, error) {
	fd, err := unix.Open(node, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fail("open", node, err)
	}
	file, err := sys.NewEventFile(fd, node)
	if err != nil {
		return nil, fail("open", node, err)
	}
	c := &Channel{file: file, done: make(chan struct{}), ids: map[uint64]*ID{}}
	go c.dispatch()
	return c, nil
}

// Close closes the channel. IDs that are still on it are destroyed by the
// kernel, and whoever waits for one gets [ErrClosed].
func (c *Channel) Close() error {
	c.file.Close()
	<-c.done
	return nil
}

// dispatch sorts events to their IDs until the channel is closed.
func (c *Channel) dispatch() {
	defer close(c.done)
	var pin runtime.Pinner
	defer pin.Unpin()
	resp := new(abi.RdmaUcmEventResp)
	req := abi.RdmaUcmGetEvent{Response: mmap.Pin(&pin, mmap.Bytes(resp))}
	for {
		err := c.file.Do(context.Background(), func(fd int) error {
			return write(fd, abi.RDMA_USER_CM_CMD_GET_EVENT, mmap.Bytes(&req), len(mmap.Bytes(resp)))
		})
		if err != nil {
			c.mu.Lock()
			ids := c.ids
			c.ids = nil
			c.mu.Unlock()
			for _, id := range ids {
				id.end()
			}
			return
		}
		c.deliver(resp)
	}
}

func (c *Channel) deliver(r *abi.RdmaUcmEventResp) {
	e := eventOf(r)
	c.mu.Lock()
	id := c.ids[r.Uid]
	if e.Type == ConnectRequest {
		// The listener's number comes with the new connection's handle.
		e.NewID = c.add(r.Id)
	}
	c.mu.Unlock()
	if (id == nil || !id.push(e)) && e.NewID != nil {
		e.NewID.Close() // its listener has just been closed
	}
}

// add makes the ID of a kernel handle. The caller holds c.mu.
func (c *Channel) add(handle uint32) *ID {
	c.next++
	id := &ID{ch: c, uid: c.next, handle: handle, ready: make(chan struct{}, 1), gone: make(chan struct{})}
	if c.ids == nil {
		id.end()
	} else {
		c.ids[id.uid] = id
	}
	return id
}

// The channel that Dial and Listen share, open while anybody uses it.
var shared struct {
	mu   sync.Mutex
	ch   *Channel
	refs int
}

// acquireShared returns the shared channel, to be given back with release.
func acquireShared() (*Channel, error) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.refs == 0 {
		ch, err := NewChannel()
		if err != nil {
			return nil, err
		}
		shared.ch = ch
	}
	shared.refs++
	return shared.ch, nil
}

func releaseShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.refs--; shared.refs == 0 {
		shared.ch.Close()
		shared.ch = nil
	}
}
