package s3rdma

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// dcis are the initiators of a server, made when they are needed.
type dcis struct {
	s    *Server
	turn chan struct{} // has an element for each DCI in use

	mu      sync.Mutex
	idle    []*lane
	all     map[*lane]struct{}
	stopped bool
	paths   map[verbs.AddressVector]*path
}

// path is an address handle. To make one takes a call of the kernel, and on RoCE perhaps a wait for the
// answer of the client's machine with its MAC address.
type path struct {
	av    verbs.AddressVector
	ah    *uverbs.AH
	users int // of mu
}

const maxPaths = 1024

func newDCIs(s *Server) *dcis {
	return &dcis{s: s, turn: make(chan struct{}, max(cmp.Or(s.opt.Fabric.DCIs, 128), 1)), all: map[*lane]struct{}{}, paths: map[verbs.AddressVector]*path{}}
}

// take takes a DCI, and waits for one if all are in use.
func (d *dcis) take(ctx context.Context, av verbs.AddressVector, target uint32) (l *lane, err error) {
	select {
	case d.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for one of %d DCIs: %w", cap(d.turn), context.Cause(ctx))
	}
	defer func() {
		if err != nil {
			<-d.turn
		}
	}()
	p, err := d.path(av)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	if n := len(d.idle); n > 0 {
		l, d.idle = d.idle[n-1], d.idle[:n-1]
	}
	d.mu.Unlock()
	if l == nil {
		if l, err = d.s.newLane(verbs.DCI); err == nil {
			err = d.start(l)
		}
	}
	if err != nil {
		d.leave(p, false)
		return nil, err
	}
	l.to = p.ah.To(target, 0)
	l.put = func(broken bool, n int) error {
		defer func() { <-d.turn }()
		err := d.put(l, broken, n)
		d.leave(p, broken)
		return err
	}
	return l, nil
}

// start moves a new DCI to RTS, or closes it.
func (d *dcis) start(l *lane) error {
	gid := d.s.opt.GID
	if gid.Port == 0 {
		gid.Port = 1
	}
	err := l.qp.StartDC(gid, d.s.opt.Fabric.connect(false))
	d.mu.Lock()
	if d.stopped {
		err = cmp.Or(err, error(verbs.ErrClosed))
	}
	d.all[l] = struct{}{}
	if err != nil {
		delete(d.all, l)
	}
	d.mu.Unlock()
	if err != nil {
		return cmp.Or(l.close(), err)
	}
	return nil
}

// put takes a DCI back, after an error through RESET.
func (d *dcis) put(l *lane, broken bool, n int) error {
	if broken {
		err := l.drain(n)
		if err == nil {
			err = l.qp.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState)
		}
		if err != nil { // another one is made when it is needed
			d.mu.Lock()
			delete(d.all, l)
			d.mu.Unlock()
			return l.close()
		}
		if err := d.start(l); err != nil {
			return nil // it was closed
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, l)
	return nil
}

// path returns an address handle, until leave.
func (d *dcis) path(av verbs.AddressVector) (*path, error) {
	f := d.s.opt.Fabric.connect(false)
	av.SL, av.TrafficClass = f.SL, f.TrafficClass
	av.HopLimit = uint8(max(cmp.Or(f.HopLimit, int(av.HopLimit)), 0))
	d.mu.Lock()
	p := d.paths[av]
	if p != nil {
		p.users++
	}
	d.mu.Unlock()
	if p != nil {
		return p, nil
	}
	ah, err := d.s.pd.CreateAH(av)
	if err != nil {
		return nil, err
	}
	p = &path{av: av, ah: ah, users: 1}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.paths) >= maxPaths {
		for av := range d.paths {
			d.forget(av)
		}
	}
	d.forget(av) // one that was made meanwhile
	d.paths[av] = p
	return p, nil
}

// forget makes the next transfer get a new address handle. mu is held.
func (d *dcis) forget(av verbs.AddressVector) {
	if p := d.paths[av]; p != nil && p.users == 0 {
		p.ah.Close()
	}
	delete(d.paths, av)
}

// leave ends the use of an address handle. One that has led nowhere is not used again: the client's
// machine may have another MAC address now.
func (d *dcis) leave(p *path, failed bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p.users--
	if failed && d.paths[p.av] == p {
		delete(d.paths, p.av)
	}
	if p.users == 0 && d.paths[p.av] != p {
		p.ah.Close()
	}
}

func (d *dcis) inUse() (made, used int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.all), len(d.all) - len(d.idle)
}

// stop ends the transfers of all DCIs.
func (d *dcis) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for l := range d.all {
		l.kill()
	}
}

// close closes all DCIs, which no transfer uses any more.
func (d *dcis) close() (err error) {
	for l := range d.all {
		err = cmp.Or(err, l.close())
	}
	for av := range d.paths {
		d.forget(av)
	}
	return err
}
