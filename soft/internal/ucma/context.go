package ucma

import (
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// context is an ID as the program knows it (struct ucma_context).
type context struct {
	file     *File
	at       int // in file.contexts
	num      uint32
	uid      uint64   // of the program; 0 before a connection is accepted
	id       *id      // nil after the device has been removed
	reported uint32   // events that have been read
	backlog  int      // connect requests that may still wait
	request  *pending // the connect request that made the context, until it has been read
	groups   []*group
}

func (f *File) newContext(i *id) *context {
	c := &context{id: i}
	i.handler = c.handle
	c.num = f.m.contexts.Add(c)
	f.addContext(c)
	return c
}

func (f *File) addContext(c *context) {
	c.file, c.at = f, len(f.contexts)
	f.contexts = append(f.contexts, c)
}

// removeContext moves the last context to the place of c: a server closes tens of thousands.
func (f *File) removeContext(c *context) {
	last := len(f.contexts) - 1
	f.contexts[c.at] = f.contexts[last]
	f.contexts[c.at].at = c.at
	f.contexts[last] = nil
	f.contexts = f.contexts[:last]
}

// context returns the context with a number (ucma_get_ctx).
func (f *File) context(num uint32) (*context, syscall.Errno) {
	c := f.m.contexts.Get(num)
	switch {
	case c == nil:
		return nil, syscall.ENOENT
	case c.file != f:
		return nil, syscall.EINVAL
	case c.id == nil:
		return nil, syscall.ENXIO
	}
	return c, 0
}

// handle queues an event of the context's ID (ucma_event_handler).
func (c *context) handle(i *id, e *event) error {
	// Before the program has accepted a connection it does not know the ID. Accepting it
	// will fail.
	if c.uid != 0 {
		c.file.queue(c.encode(e))
	}
	if e.typ == deviceRemoval {
		i.destroy()
		c.id = nil
	}
	return nil
}

// handleRequest queues a connect request to the context's ID, which listens. i is the ID of
// the connection (ucma_connect_event_handler).
func (c *context) handleRequest(i *id, e *event) error {
	if c.backlog == 0 {
		return ibcm.ErrNoRoom
	}
	c.backlog--
	p := c.encode(e)
	p.conn = c.file.newContext(i)
	p.resp.Id = p.conn.num
	p.conn.request = p
	c.file.queue(p)
	return nil
}

// destroy ends the ID, and drops its events. It returns the number of events that have been
// read (ucma_destroy_private_ctx).
func (c *context) destroy() (reported uint32) {
	f := c.file
	if c.id != nil {
		c.id.destroy()
		c.id = nil
	}
	var requests []*context // that were not read
	f.drop(func(p *pending) bool {
		if p.context == c && p.conn != nil {
			p.conn.request = nil
			requests = append(requests, p.conn)
		}
		return p.context == c
	})
	if r := c.request; r != nil { // its file has been closed, or the listener has moved to another
		r.context.file.drop(func(p *pending) bool { return p == r })
		r.context.backlog++
	}
	for _, g := range c.groups {
		f.m.groups.Remove(g.num)
	}
	c.groups = nil
	f.removeContext(c)
	f.m.contexts.Remove(c.num)
	for _, r := range requests {
		r.destroy()
	}
	return c.reported
}

func (f *File) createID(in *abi.RdmaUcmCreateId, out int) syscall.Errno {
	var typ verbs.QPType
	switch in.Ps {
	case abi.RDMA_PS_TCP:
		typ = verbs.RC
	case abi.RDMA_PS_UDP, abi.RDMA_PS_IPOIB:
		typ = verbs.UD
	case abi.RDMA_PS_IB:
		typ = verbs.QPType(in.QpType)
	default:
		return syscall.EINVAL
	}
	c := f.newContext(f.m.newID(in.Ps, typ))
	c.uid = in.Uid
	errno := respond(in.Response, out, &abi.RdmaUcmCreateIdResp{Id: c.num})
	if errno != 0 {
		c.destroy()
	}
	return errno
}

func (f *File) destroyID(in *abi.RdmaUcmDestroyId, out int) syscall.Errno {
	c, errno := f.context(in.Id)
	if c == nil {
		if errno != syscall.ENXIO {
			return errno
		}
		c = f.m.contexts.Get(in.Id)
	}
	return respond(in.Response, out, &abi.RdmaUcmDestroyIdResp{EventsReported: c.destroy()})
}
