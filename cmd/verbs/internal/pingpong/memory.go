package pingpong

import (
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// memory holds the messages. As in rdma-core's programs, all sends and receives share one
// buffer, so that a received message is sent back, unless messages are checked: then sends
// have a buffer of their own, and with an SRQ, which receives several messages at a time, so
// does each receive.
type memory struct {
	mr    *uverbs.MR
	head  int // bytes of a receive before the message
	slots []verbs.SGE
	out   verbs.SGE
	data  []byte // the bytes of out
}

func (s *side) allocMemory() (err error) {
	if s.qp == verbs.UD {
		s.head = verbs.GRHSize
	}
	slots, outOffset := 1, s.head
	if s.Check && s.shared {
		slots = s.RxDepth
	}
	each := s.head + s.Size
	total := slots * each
	if s.Check {
		outOffset = total
		total += s.Size
	}
	if s.mr, err = cli.Own(s.pd.AllocMR(total, verbs.AccessLocalWrite, uverbs.MROptions{}))(&s.objects); err != nil {
		return err
	}
	for i := range slots {
		s.slots = append(s.slots, s.mr.SGE(i*each, each))
	}
	s.out = s.mr.SGE(outOffset, s.Size)
	s.data = s.mr.Bytes()[outOffset : outOffset+s.Size]
	for i := range s.RxDepth {
		s.unposted = append(s.unposted, s.recvWR(i%slots))
	}
	if s.Check {
		poison(s.mr.Bytes())
		fillPattern(s.data, 0)
	}
	return nil
}

func (s *side) recvWR(slot int) verbs.RecvWR {
	return verbs.RecvWR{ID: uint64(slot), SGL: s.slots[slot : slot+1]}
}

// message returns the message that the receive of a slot got.
func (s *side) message(slot int) []byte {
	at := slot * (s.head + s.Size)
	return s.mr.Bytes()[at+s.head : at+s.head+s.Size]
}

// expected returns the number of the pattern that the next message must have; ok is false
// if there is none. Each side sends the patterns 0, 1, 2, ... and expects the same. A client
// receives them even from the C programs, which send back what they received. A server's
// client may be a C program, which starts with other data and then lags behind by one. With
// an SRQ the C programs use one buffer for the messages of all QPs, so these are all the same.
func (s *side) expected(l *lane, got []byte) (n int, ok bool) {
	if l.received == 0 && s.Host == "" && differs(got, 0) >= 0 {
		l.lag = 1
	}
	n = l.received - l.lag
	if s.shared && n >= 0 {
		n = 0
	}
	return n, n >= 0
}

// check compares a message and overwrites it, so that it is not mistaken for a later one.
func (s *side) check(l *lane, slot int) error {
	got := s.message(slot)
	if n, ok := s.expected(l, got); ok {
		if i := differs(got, n); i >= 0 {
			return fmt.Errorf("message %d on QP %d: byte %d is %#02x, not %#02x", l.received, l.qp.Num(), i, got[i], pattern(n, i))
		}
		s.checked++
	}
	poison(got)
	return nil
}

// pattern returns byte i of the n-th message. The check of the C programs requires a zero
// at the start of each page. All other bytes depend on n, and on i so that shifts are found.
func pattern(n, i int) byte {
	if i%4096 == 0 {
		return 0
	}
	return byte(31*n + i + i>>8 + i>>16)
}

// differs returns the first byte of b that is not that of the n-th message, or -1.
func differs(b []byte, n int) int {
	for i := range b {
		if b[i] != pattern(n, i) {
			return i
		}
	}
	return -1
}

func fillPattern(b []byte, n int) {
	for i := range b {
		b[i] = pattern(n, i)
	}
}

// poison overwrites b with a byte with which no message starts.
func poison(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}
