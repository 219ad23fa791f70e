package msg

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// device is an open RDMA device of a loop: one completion channel, and CQs that
// many sockets share. It lives until the loop and all its arenas have gone.
type device struct {
	index int // as the kernel numbers it
	name  string
	iwarp bool
	ctx   *uverbs.Context
	ch    *uverbs.CompChannel
	fd    int // of ch
	depth int // of a CQ

	mu     sync.Mutex
	refs   int
	shards []*shard
}

// shard is a CQ and how many sockets complete to it.
type shard struct {
	dev   *device
	cq    *uverbs.CQ
	users int
	armed bool // only for who dispatches
}

// shardSize is how many sockets share a CQ, at most. Each has room for twice
// its requests: those of a QP that has gone may still be there.
const shardSize = 64

// device returns the loop's device to which a route leads.
func (l *Loop) device(r cm.Route) (*device, error) {
	l.opening.Lock()
	defer l.opening.Unlock()
	l.mu.Lock()
	closing := l.closing
	for _, d := range l.devices {
		if d.index == r.Index {
			d.mu.Lock()
			d.refs++
			d.mu.Unlock()
			l.mu.Unlock()
			return d, nil
		}
	}
	l.mu.Unlock()
	if closing {
		return nil, ErrClosed
	}
	d, err := openDevice(r, l.opt)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closing {
		if err = l.poller.add(d.fd, len(l.devices)); err == nil {
			l.devices = append(l.devices, d)
			d.refs++ // for the loop
			return d, nil
		}
	} else {
		err = ErrClosed
	}
	d.unref()
	return nil, err
}

func openDevice(r cm.Route, opt Options) (*device, error) {
	found, err := r.FindDevice()
	if err != nil {
		return nil, err
	}
	d := &device{index: r.Index, name: found.Name, iwarp: found.IWARP(), refs: 1}
	if d.ctx, err = found.Open(); err != nil {
		return nil, err
	}
	d.depth = shardSize * 2 * (opt.sends() + opt.receives())
	attr, err := d.ctx.QueryDevice()
	if err == nil {
		d.depth = min(d.depth, int(attr.Base.MaxCqe))
		d.ch, err = d.ctx.CreateCompChannel()
	}
	if err == nil {
		raw, rerr := d.ch.SyscallConn()
		if err = rerr; err == nil {
			err = raw.Control(func(fd uintptr) { d.fd = int(fd) })
		}
	}
	if err != nil {
		d.unref()
		return nil, err
	}
	return d, nil
}

// join finds a CQ for one more socket, and leave gives it back.
func (d *device) join(l *Loop) (*shard, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	size := d.depth / (2 * (l.opt.sends() + l.opt.receives()))
	for _, s := range d.shards {
		if s.users < size {
			s.users++
			return s, nil
		}
	}
	if size == 0 {
		return nil, fmt.Errorf("CQ of %d completions is too small: lower SendQueue and Credits: %w", d.depth, unix.EINVAL)
	}
	cq, err := d.ctx.CreateCQ(uverbs.CQOptions{Depth: d.depth, Channel: d.ch})
	if err != nil {
		return nil, err
	}
	if err := cq.Arm(false); err != nil {
		cq.Close()
		return nil, err
	}
	s := &shard{dev: d, cq: cq, users: 1, armed: true}
	d.shards = append(d.shards, s)
	return s, nil
}

func (s *shard) leave() {
	s.dev.mu.Lock()
	s.users--
	s.dev.mu.Unlock()
}

// cqs are those that there are now.
func (d *device) cqs() []*shard {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shards
}

// drain discards the channel's events: the CQs are polled anyway.
func (d *device) drain() {
	var b [512]byte
	for {
		if n, err := unix.Read(d.fd, b[:]); n < len(b) || err != nil {
			break
		}
	}
	for _, s := range d.cqs() {
		s.armed = false
	}
}

// unref closes the device when nobody needs it any more.
func (d *device) unref() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return nil
	}
	for _, s := range d.shards {
		if err := s.cq.Close(); err != nil {
			return err
		}
	}
	d.shards = nil
	if d.ch != nil {
		if err := d.ch.Close(); err != nil {
			return err
		}
	}
	return d.ctx.Close()
}
