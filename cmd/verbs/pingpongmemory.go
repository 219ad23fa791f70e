package main

import (
	"fmt"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// pingpongMemory is where messages are. Like rdma-core's programs, it has one
// place for all that come and go, so that what comes goes back, unless what
// comes is compared: then what goes has a place of its own, and with an SRQ,
// where several messages come at a time, so has each receive.
type pingpongMemory struct {
	mr    *uverbs.MR
	head  int // of a receive, before the message
	slots []verbs.SGE
	out   verbs.SGE
	data  []byte // what out names
}

func (p *pingpong) layOut() (err error) {
	if p.qp == verbs.UD {
		p.head = verbs.GRHSize
	}
	slots, outOffset := 1, p.head
	if p.Check && p.shared {
		slots = p.RxDepth
	}
	each := p.head + p.Size
	total := slots * each
	if p.Check {
		outOffset = total
		total += p.Size
	}
	if p.mr, err = own(p.pd.AllocMR(total, verbs.AccessLocalWrite, uverbs.MROptions{}))(p); err != nil {
		return err
	}
	for i := range slots {
		p.slots = append(p.slots, p.mr.SGE(i*each, each))
	}
	p.out = p.mr.SGE(outOffset, p.Size)
	p.data = p.mr.Bytes()[outOffset : outOffset+p.Size]
	for i := range p.RxDepth {
		p.spare = append(p.spare, p.recvWR(i%slots))
	}
	if p.Check {
		spoil(p.mr.Bytes())
		fillPattern(p.data, 0)
	}
	return nil
}

func (p *pingpong) recvWR(slot int) verbs.RecvWR {
	return verbs.RecvWR{ID: uint64(slot), SGL: p.slots[slot : slot+1]}
}

// message is what the receive of a slot got.
func (p *pingpong) message(slot int) []byte {
	at := slot * (p.head + p.Size)
	return p.mr.Bytes()[at+p.head : at+p.head+p.Size]
}

// expected is the number of the pattern that the next message must have; not
// ok is none. Each side sends the patterns 0, 1, 2, ... and expects the same,
// which a client gets even from C, as that sends back what it got. A server's
// client is either Go, or it is C, which starts with something else and then
// lags behind by one. On an SRQ C puts the messages of all QPs in the same
// place, so there they are all the same.
func (p *pingpong) expected(r *rally, got []byte) (n int, ok bool) {
	if r.received == 0 && p.Host == "" && !hasPattern(got, 0) {
		r.lag = 1
	}
	n = r.received - r.lag
	if p.shared && n >= 0 {
		n = 0
	}
	return n, n >= 0
}

// check compares a message, and wipes it so that it is not taken for another.
func (p *pingpong) check(r *rally, slot int) error {
	got := p.message(slot)
	if n, ok := p.expected(r, got); ok {
		for i, b := range got {
			if want := pattern(n, i); b != want {
				return fmt.Errorf("message %d on QP %d: byte %d is %#02x, not %#02x", r.received, r.qp.Num(), i, b, want)
			}
		}
		p.checked++
	}
	spoil(got)
	return nil
}

// pattern is byte i of the n-th message. C's check wants a zero where its
// pages start. All else depends on n, and shifts of the data change it too.
func pattern(n, i int) byte {
	if i%4096 == 0 {
		return 0
	}
	return byte(31*n + i + i>>8 + i>>16)
}

func hasPattern(b []byte, n int) bool {
	for i := range b {
		if b[i] != pattern(n, i) {
			return false
		}
	}
	return true
}

func fillPattern(b []byte, n int) {
	for i := range b {
		b[i] = pattern(n, i)
	}
}

// spoil overwrites b with what no message starts with.
func spoil(b []byte) {
	for i := range b {
		b[i] = 0xa5
	}
}
