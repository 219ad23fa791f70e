package main

import (
	"encoding/binary"

	"github.com/goverbs/verbs"
)

// post posts the next n messages with one call. The last of all, the last before those that are
// measured, and four of those in flight are signaled; the ID is how many have been posted including it.
func (e *end) post(n uint32) error {
	before, period := e.posted, e.flight()/4
	e.posted += n
	last := &e.wrs[n-1]
	last.ID = uint64(e.posted)
	if e.posted/period != before/period || e.posted == e.N || before < e.warm && e.posted >= e.warm || e.fetches() {
		last.Flags = verbs.SendSignaled
		e.signaled++
	}
	_, err := e.QP.PostSend(e.wrs[:n]...)
	last.Flags = 0
	return err
}

// postInline posts a SEND of the first n bytes of smallData, or with addr a
// WRITE.
func (e *end) postInline(n int, addr uint64) error {
	wr := &e.small[0]
	*wr = verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: e.smallData[:n]}
	if addr != 0 {
		wr.Opcode, wr.RemoteAddr, wr.RKey = verbs.OpRDMAWrite, addr, e.peer.RKey
	}
	e.signaled++
	_, err := e.QP.PostSend(e.small[:]...)
	return err
}

// receive receives messages, at least one and at most n, and posts their receives
// again.
func (e *end) receive(n int) error {
	n, err := e.await(e.RecvCQ, n, e.Events != 0)
	if err != nil {
		return err
	}
	for i := range e.wc[:n] {
		e.got.Bytes += uint64(e.wc[i].ByteLen)
	}
	e.got.Messages += uint64(n)
	_, err = e.QP.PostRecv(e.recvs[:n]...)
	return err
}

// begin is the report before a round, over that after the last.
var begin, over = report{Messages: 1}, report{}

// sendReport sends a report, and waits until all requests have completed.
func (e *end) sendReport(r report) error {
	binary.Encode(e.smallData[:], binary.NativeEndian, &r)
	err := e.postInline(16, 0)
	for err == nil && e.signaled > 0 {
		err = e.reap(batch, e.Events != 0)
	}
	return err
}

// recvReport receives the peer's report.
func (e *end) recvReport(sleep bool) (r report, err error) {
	if _, err := e.await(e.RecvCQ, 1, sleep); err != nil {
		return r, err
	}
	if _, err := binary.Decode(e.in, binary.NativeEndian, &r); err != nil {
		return r, err
	}
	_, err = e.QP.PostRecv(e.recvs[:1]...)
	return r, err
}

// flight returns how many messages are in flight at most. If all large ones of a round were,
// none might be measured.
func (e *end) flight() uint32 {
	if e.Size > 64<<10 {
		return 8
	}
	return depth
}
