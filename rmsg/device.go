package rmsg

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/uverbs"
)

// devices are the open devices of a loop.
type devices struct {
	opening sync.Mutex // held while one is opened
	list    []*device  // replaced, not changed
	lastID  int32
}

// device is an open RDMA device of a loop: one completion channel, and CQs that many connections
// share. It is closed when no arena has used it for idleTimeout, or the loop is closed and no arena
// uses it.
type device struct {
	l     *Loop
	id    int32 // of fd in the loop's files
	index int   // the kernel's device index
	name  string
	iwarp bool
	ctx   *uverbs.Context
	ch    *uverbs.CompChannel
	fd    int // of ch
	depth int // the most of a CQ

	failed atomic.Bool

	mu       sync.Mutex
	refs     int
	shards   []*shard
	idle     *time.Timer // runs since refs became 0
	detached bool        // removed from the loop
}

// idleTimeout is how long an unused device stays open, as opening one takes longer than connecting.
// The kernel cannot remove an open device.
const idleTimeout = 250 * time.Millisecond

// shard is a CQ and the number of connections that use it.
type shard struct {
	dev   *device
	cq    *uverbs.CQ
	room  int // the most users
	users int
	armed bool // accessed only while dispatching
}

// shardSize is the largest number of connections that share a CQ. There is room for twice their
// requests: completions of destroyed QPs may still be in the CQ. The first CQ, the only one of most
// loops, is for fewer connections: on adapters it takes locked memory, 256 KiB with the default
// options instead of 1 MiB. One connection more would double either.
const (
	shardSize  = 62
	firstShard = 15
)

// device returns the loop's device that a route leads to, and opens it if necessary.
func (l *Loop) device(r cm.Route) (*device, error) {
	l.devices.opening.Lock()
	defer l.devices.opening.Unlock()
	l.mu.Lock()
	over := l.in(closing)
	for _, d := range l.devices.list {
		if d.index == r.Index {
			d.mu.Lock()
			d.refs++
			d.mu.Unlock()
			l.mu.Unlock()
			return d, nil
		}
	}
	l.mu.Unlock()
	if over {
		return nil, verbs.ErrClosed
	}
	d, err := l.openDevice(r)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.in(closing) {
		l.devices.lastID++
		d.id = l.devices.lastID
		if err = l.files.Add(d.fd, d.id); err == nil {
			l.devices.list = append(slices.Clip(l.devices.list), d) // Dispatch may be using the old slice
			return d, nil
		}
	} else {
		err = verbs.ErrClosed
	}
	d.detached = true
	d.unref()
	return nil, err
}

func (l *Loop) openDevice(r cm.Route) (*device, error) {
	found, err := r.FindDevice()
	if err != nil {
		return nil, err
	}
	d := &device{l: l, index: r.Index, name: found.Name, iwarp: found.IWARP(), refs: 1}
	if d.ctx, err = found.Open(); err != nil {
		return nil, err
	}
	d.depth = bridge.DeviceAttr(d.ctx).MaxCQE
	if d.ch, err = d.ctx.CreateCompChannel(); err != nil {
		d.close()
		return nil, err
	}
	d.fd = d.ch.FD()
	return d, nil
}

// acquireShard returns a CQ with room for one more connection; release frees that room.
func (d *device) acquireShard(l *Loop) (*shard, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.shards {
		if s.users < s.room {
			s.users++
			return s, nil
		}
	}
	room, each := firstShard, 2*(l.opt.sends()+l.opt.receives())
	if len(d.shards) > 0 {
		room = shardSize
	}
	if room = min(room, d.depth/each); room == 0 {
		return nil, fmt.Errorf("CQ of %d completions is too small: lower SendQueue and Credits: %w", d.depth, syscall.EINVAL)
	}
	cq, err := d.ctx.CreateCQ(uverbs.CQOptions{Depth: room * each, Channel: d.ch})
	if err != nil {
		return nil, err
	}
	if err := cq.Arm(false); err != nil {
		cq.Close()
		return nil, err
	}
	s := &shard{dev: d, cq: cq, room: room, users: 1, armed: true}
	d.shards = append(d.shards, s)
	return s, nil
}

func (s *shard) release() {
	s.dev.mu.Lock()
	s.users--
	s.dev.mu.Unlock()
}

func (d *device) cqs() []*shard {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.shards
}

// drain discards the channel's events: the CQs are polled anyway. A read returns one event; if one
// were left, the next event would make no edge.
func (d *device) drain() {
	var b [16]byte
	for {
		if n, err := host.Read(d.fd, b[:]); n <= 0 || err != nil {
			break
		}
	}
	for _, s := range d.cqs() {
		s.armed = false
	}
}

func (d *device) unref() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.refs--; d.refs > 0 {
		return
	}
	switch {
	case d.detached:
		if err := d.close(); err != nil {
			d.l.log(slog.LevelWarn, "closing the device failed", slog.String("device", d.name), slog.Any("err", err))
		}
	case d.idle == nil:
		d.idle = time.AfterFunc(idleTimeout, func() { d.l.post(nil, func() { d.l.detach(d, false) }) })
	default:
		d.idle.Reset(idleTimeout)
	}
}

// detach removes a device from the loop, unless it has references and busy is false. The device is
// closed now or by the last unref. Only Dispatch may call detach, as it uses the device's file
// without a lock.
func (l *Loop) detach(d *device, busy bool) {
	l.mu.Lock()
	d.mu.Lock()
	refs := d.refs
	detach := !d.detached && (busy || refs == 0)
	if detach {
		d.detached = true
		l.devices.list = slices.DeleteFunc(slices.Clone(l.devices.list), func(x *device) bool { return x == d })
	}
	d.mu.Unlock()
	l.mu.Unlock()
	if !detach || refs > 0 {
		return
	}
	l.files.Remove(d.fd)
	if err := d.close(); err != nil {
		l.log(slog.LevelWarn, "closing the device failed", slog.String("device", d.name), slog.Any("err", err))
		l.mu.Lock()
		l.closeErr = err
		l.mu.Unlock()
	}
}

// fail ends the connections on a device whose file reports an error: the driver has removed it.
func (l *Loop) fail(d *device) {
	l.files.Remove(d.fd)
	l.log(slog.LevelWarn, "device removed", slog.String("device", d.name))
	d.failed.Store(true)
	l.detach(d, true)
	l.mu.Lock()
	conns := slices.Collect(maps.Values(l.conns))
	l.mu.Unlock()
	for _, s := range conns {
		s.mu.Lock()
		if s.qp != nil && s.arena.dev == d { // otherwise setup fails
			s.fail(verbs.ErrDeviceRemoved)
		}
		s.mu.Unlock()
	}
}

// close releases everything. The device is no longer used.
func (d *device) close() error {
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
