package cm

import (
	"container/list"
	"errors"
	"fmt"

	"github.com/goverbs/verbs/uverbs"
)

// ErrSenderForgotten is an answer to one who has not been heard of for longer
// than [Datagrams.KeepSenders] others.
var ErrSenderForgotten = errors.New("many others have sent since")

const keptSenders = 1024

// senders are the address handles of those whom messages came from. The
// endpoint's mutex guards them.
type senders struct {
	most     int
	byHeader map[header]*list.Element
	handles  list.List // each a handle, the latest last
	// forgotten are the numbers of handles that are no more: the device may use
	// them again, but not what is sent to them.
	forgotten map[uint32]bool
}

func newSenders() *senders {
	return &senders{most: keptSenders, byHeader: map[header]*list.Element{}, forgotten: map[uint32]bool{}}
}

// header is what tells one sender from others.
type header struct {
	grh  [uverbs.GRHSize]byte
	slid uint16
	sl   uint8
}

type handle struct {
	header header
	ah     *uverbs.AH
}

func headerOf(wc *uverbs.WC, grh []byte) header {
	h := header{slid: wc.SLID, sl: wc.SL}
	copy(h.grh[:], grh)
	// What differs from packet to packet says nothing about the sender: the
	// lengths, and IPv4's identification and checksum.
	clear(h.grh[4:6])
	if grh[20]>>4 == 4 {
		clear(h.grh[22:26])
		clear(h.grh[30:32])
	}
	return h
}

// find returns the handle of a sender, if there is one.
func (s *senders) find(h header) *uverbs.AH {
	at := s.byHeader[h]
	if at == nil {
		return nil
	}
	s.handles.MoveToBack(at)
	return at.Value.(handle).ah
}

// add takes a new handle.
func (s *senders) add(h header, ah *uverbs.AH) {
	s.byHeader[h] = s.handles.PushBack(handle{h, ah})
	delete(s.forgotten, number(ah))
	s.trim()
}

// trim forgets the oldest if there are too many.
func (s *senders) trim() {
	for s.handles.Len() > s.most {
		oldest := s.handles.Remove(s.handles.Front()).(handle)
		delete(s.byHeader, oldest.header)
		s.forgotten[number(oldest.ah)] = true
		oldest.ah.Close()
	}
}

// check refuses those who are forgotten.
func (s *senders) check(to uverbs.UDAddr) error {
	if s.forgotten[to.AH] {
		return fmt.Errorf("to AH %d: %w", to.AH, ErrSenderForgotten)
	}
	return nil
}

func (s *senders) close() (err error) {
	for at := s.handles.Front(); at != nil; at = at.Next() {
		err = errors.Join(err, at.Value.(handle).ah.Close())
	}
	return err
}

func number(ah *uverbs.AH) uint32 { return ah.To(0, 0).AH }
