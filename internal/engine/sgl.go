package engine

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
)

// cursor is a position in a list of SGEs.
type cursor struct {
	sge int
	off uint32
}

// copySGL copies between buf and the local memory that sges names, from the cursor on, which it
// moves. It reports copyInvalid if a key or an address is not valid, copyEnd if the list ends, and
// copyMissing, without moving the cursor, if a page is missing.
func (qp *QP) copySGL(sges []abi.RxeSge, c *cursor, buf []byte, toMemory bool) copyResult {
	var access verbs.Access
	if toMemory {
		access = verbs.AccessLocalWrite
	}
	start := *c
	for len(buf) > 0 {
		if c.sge >= len(sges) {
			return copyEnd
		}
		s := &sges[c.sge]
		if c.off >= s.Length {
			*c = cursor{sge: c.sge + 1}
			continue
		}
		at := qp.local(s.Lkey, access, s.Addr+uint64(c.off), uint64(min(s.Length-c.off, uint32(len(buf)))))
		n, ok := at.copy(buf, toMemory)
		switch {
		case ok:
		case at.paged:
			*c = start
			return copyMissing
		default:
			return copyInvalid
		}
		c.off += uint32(n)
		buf = buf[n:]
	}
	return copyOK
}

type copyResult uint8

const (
	copyOK copyResult = iota
	copyInvalid
	copyEnd // the list is shorter than the data
	copyMissing
)

func (c *cursor) seek(sges []abi.RxeSge, off uint32) {
	*c = cursor{}
	for c.sge < len(sges) && off >= sges[c.sge].Length {
		off -= sges[c.sge].Length
		c.sge++
	}
	c.off = off
}

// receive is the receive request that a message is using.
type receive struct {
	active bool
	id     uint64
	length uint32 // room for the message
	got    uint32
	sges   []abi.RxeSge
	cursor cursor
}

// load copies the request at the head of a ring. It reports false if it is malformed.
func (r *receive) load(ring *Ring, maxSGE int) bool {
	w := ring.recvWQE(ring.index)
	n := w.Dma.NumSge
	if n > uint32(maxSGE) {
		return false
	}
	r.id, r.length, r.got, r.cursor = w.WrId, w.Dma.Length, 0, cursor{}
	r.sges = r.sges[:0]
	for i := range int(n) {
		r.sges = append(r.sges, ring.sge(ring.index, recvWQESize, i))
	}
	r.active = true
	return true
}

// room returns the sum of the lengths of the SGEs.
func (r *receive) room() (n uint64) {
	for i := range r.sges {
		n += uint64(r.sges[i].Length)
	}
	return n
}

type takeResult uint8

const (
	takeOK takeResult = iota
	takeEmpty
	takeMalformed
)

// takeReceive loads the next receive request. The QP's own queue keeps it until it is complete.
func (r *responder) takeReceive() takeResult {
	if r.init.SRQ != nil {
		return r.init.SRQ.take(&r.recv)
	}
	if r.ring.empty(r.init.RefillRecv) {
		return takeEmpty
	}
	if !r.recv.load(r.ring, r.init.Cap.MaxRecvSGE) {
		return takeMalformed
	}
	return takeOK
}
