package cm

import (
	"container/list"
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

const (
	keptSenders = 1024
	// resolutions is the number of address handles that are made at a time: each
	// blocks a thread in the kernel as long as the address does not answer.
	resolutions = 64
)

// Sender is the source of a datagram as its header states it, which nothing proves.
// Senders are equal if they have the same queue pair, address and traffic class.
type Sender struct {
	QPNum  uint32
	header header
}

// header identifies the path to a sender.
type header struct {
	grh      [verbs.GRHSize]byte
	global   bool // grh is set
	slid     uint16
	sl       uint8
	pathBits uint8
}

func senderOf(wc *verbs.WC, grh []byte) Sender {
	h := header{global: wc.Flags&verbs.WCGRH != 0, slid: wc.SLID, sl: wc.SL, pathBits: wc.PathBits}
	if h.global {
		copy(h.grh[:], grh)
	}
	// Fields that differ between packets of one sender are cleared: payload length and
	// hop limit, or IPv4's identification, fragment, time to live and checksum.
	if h.v4() {
		clear(h.grh[22:26])
		clear(h.grh[28:29])
		clear(h.grh[30:32])
	} else {
		clear(h.grh[4:6])
		clear(h.grh[7:8])
	}
	return Sender{QPNum: wc.SrcQP, header: h}
}

// v4 reports whether the header is that of IPv4, in the last 20 bytes, and not an
// IPv6 header with an address that looks like one.
func (h *header) v4() bool { return h.grh[0]>>4 != 6 && h.grh[20]>>4 == 4 }

// Addr returns the sender's address. It is invalid for a datagram without a GRH,
// which InfiniBand does not need within a subnet.
func (s Sender) Addr() netip.Addr {
	switch {
	case !s.header.global:
		return netip.Addr{}
	case s.header.v4():
		return netip.AddrFrom4([4]byte(s.header.grh[32:36]))
	}
	return netip.AddrFrom16([16]byte(s.header.grh[8:24]))
}

// senders is the cache of address handles for answers.
type senders struct {
	create    func(header) (*uverbs.AH, error)
	resolving chan struct{} // holds a token for each create
	creates   sync.WaitGroup

	mu       sync.Mutex
	most     int
	byHeader map[header]*handle
	made     list.List // *handle, the most recently used last
	closed   bool
}

// handle is an address handle, or one that is being made.
type handle struct {
	header header
	done   chan struct{} // closed when ah or err is set
	ah     *uverbs.AH
	err    error
	at     *list.Element // of senders.made
	users  int
}

func newSenders(create func(header) (*uverbs.AH, error)) *senders {
	return &senders{create: create, resolving: make(chan struct{}, resolutions), most: keptSenders, byHeader: map[header]*handle{}}
}

// acquire returns the handle of a sender, which stays open until release.
func (s *senders) acquire(ctx context.Context, h header) (*handle, error) {
	k, err := s.find(ctx, h)
	if err != nil {
		return nil, err
	}
	select {
	case <-k.done:
		err = k.err
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		s.release(k)
		return nil, err
	}
	return k, nil
}

// find returns the handle of a sender and counts a user of it. If there is none, it
// starts to make one.
func (s *senders) find(ctx context.Context, h header) (*handle, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byHeader[h] == nil {
		s.mu.Unlock()
		var err error
		select {
		case s.resolving <- struct{}{}:
		case <-ctx.Done():
			err = ctx.Err()
		}
		s.mu.Lock()
		switch {
		case err != nil:
			return nil, err
		case s.closed || s.byHeader[h] != nil:
			<-s.resolving
		default:
			k := &handle{header: h, done: make(chan struct{})}
			s.byHeader[h] = k
			s.creates.Go(func() { s.resolve(k) })
		}
	}
	if s.closed {
		return nil, verbs.ErrClosed
	}
	k := s.byHeader[h]
	k.users++
	if k.at != nil {
		s.made.MoveToBack(k.at)
	}
	return k, nil
}

// resolve makes a handle.
func (s *senders) resolve(k *handle) {
	ah, err := s.create(k.header)
	<-s.resolving
	s.mu.Lock()
	defer s.mu.Unlock()
	k.ah, k.err = ah, err
	if err != nil {
		delete(s.byHeader, k.header)
	} else {
		k.at = s.made.PushBack(k)
		s.trim()
	}
	close(k.done)
}

func (s *senders) release(k *handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k.users--
	s.trim()
}

func (s *senders) keep(most int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.most = most
	s.trim()
}

// trim evicts unused handles, the least recently used first, until no more than most
// are left. The caller holds mu.
func (s *senders) trim() {
	for at := s.made.Front(); at != nil && s.made.Len() > s.most; {
		k := at.Value.(*handle)
		at = at.Next()
		if k.users == 0 {
			s.remove(k)
		}
	}
}

// remove closes a handle. The caller holds mu.
func (s *senders) remove(k *handle) error {
	if err := k.ah.Close(); err != nil {
		return err
	}
	s.made.Remove(k.at)
	delete(s.byHeader, k.header)
	return nil
}

// close waits until no handle is being made, and closes all. The QP must be closed
// before. After a failure it can be called again.
func (s *senders) close() (err error) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.creates.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for at := s.made.Front(); at != nil; {
		k := at.Value.(*handle)
		at = at.Next()
		err = errors.Join(err, s.remove(k))
	}
	return err
}
