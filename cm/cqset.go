package cm

import (
	"errors"
	"slices"

	"github.com/goverbs/verbs/internal/bridge"
	"github.com/goverbs/verbs/uverbs"
)

// cqSet has the CQs of an endpoint and their completion channel. A device keeps the sets of closed
// endpoints for new ones: making and mapping CQs, and opening a channel and an epoll set, take up
// to half of the time of a set-up.
type cqSet struct {
	cqKind
	send, recv         *uverbs.CQ          // nil if the kind has none
	events             *uverbs.CompChannel // nil if polled
	sendSize, recvSize int                 // depths as the device has rounded them
}

// cqKind is what the options of an endpoint ask for; sets of one kind can replace each other.
type cqKind struct {
	send, recv             int // depths; 0 for a CQ of the program
	polled, singleThreaded bool
}

// maxIdleCQs is the most idle sets of a device.
const maxIdleCQs = 32

func newCQSet(ctx *uverbs.Context, kind cqKind) (s *cqSet, err error) {
	s = &cqSet{cqKind: kind}
	if !kind.polled {
		s.events, err = ctx.CreateCompChannel()
	}
	create := func(depth int) (cq *uverbs.CQ, size int) {
		if err != nil || depth == 0 {
			return nil, 0
		}
		cq, err = ctx.CreateCQ(uverbs.CQOptions{Depth: depth, Channel: s.events, SingleThreaded: kind.singleThreaded})
		if err != nil {
			return nil, 0
		}
		return cq, cq.Cap()
	}
	s.send, s.sendSize = create(kind.send)
	s.recv, s.recvSize = create(kind.recv)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *cqSet) close() (err error) {
	if s.send != nil {
		err = s.send.Close()
	}
	if s.recv != nil {
		err = errors.Join(err, s.recv.Close())
	}
	if s.events != nil && err == nil {
		err = s.events.Close()
	}
	return err
}

// recycle takes the CQs from the endpoint that had them. It reports false if they are not as new:
// the program may have closed or resized a CQ, or still use it.
func (s *cqSet) recycle() bool {
	recycle := func(cq **uverbs.CQ, size int) bool {
		if *cq == nil {
			return true
		}
		if (*cq).Cap() != size {
			return false
		}
		next, err := bridge.RecycleCQ(*cq)
		if err == nil {
			*cq = next.(*uverbs.CQ)
		}
		return err == nil
	}
	return recycle(&s.send, s.sendSize) && recycle(&s.recv, s.recvSize)
}

// cqs returns the set of a closed endpoint, or a new one.
func (d *device) cqs(kind cqKind) (*cqSet, error) {
	d.t.mu.Lock()
	for i, s := range d.idleCQs {
		if s.cqKind == kind {
			d.idleCQs = slices.Delete(d.idleCQs, i, i+1)
			d.t.mu.Unlock()
			return s, nil
		}
	}
	d.t.mu.Unlock()
	return newCQSet(d.ctx, kind)
}

// releaseCQs keeps or closes the set of a closed endpoint.
func (d *device) releaseCQs(s *cqSet) error {
	if s.recycle() {
		d.t.mu.Lock()
		kept := len(d.idleCQs) < maxIdleCQs
		if kept {
			d.idleCQs = append(d.idleCQs, s)
		}
		d.t.mu.Unlock()
		if kept {
			return nil
		}
	}
	return s.close()
}

// closeIdleCQs closes the sets that no endpoint uses. The caller holds the transport's mu.
func (d *device) closeIdleCQs() (err error) {
	d.idleCQs = slices.DeleteFunc(d.idleCQs, func(s *cqSet) bool {
		cerr := s.close()
		err = errors.Join(err, cerr)
		return cerr == nil
	})
	return err
}
