package main

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
)

// stream sends all messages, as fast as the queues accept them and the peer receives.
func (e *end) stream() error {
	completed := uint32(0)
	for completed < e.N {
		for e.posted < e.N {
			k := min(e.N-e.posted, e.List)
			if e.posted+k > completed+e.flight() || e.Op == verbs.OpSend && e.posted+k > e.word.Load()+recvs-1 {
				break
			}
			if err := e.post(k); err != nil {
				return err
			}
		}
		got, err := e.poll(e.SendCQ, batch) // not reap: the peer's notification may arrive first
		if err != nil {
			return err
		}
		e.signaled -= got
		if got > 0 {
			completed = uint32(e.wc[got-1].ID)
		}
		if e.before < e.warm && completed >= e.warm {
			e.before, e.start = completed, time.Now()
		}
	}
	e.got = report{uint64(e.N), uint64(e.N) * uint64(e.Size)}
	return nil
}

// receiveAll receives all messages, and notifies the sender.
func (e *end) receiveAll() error {
	told := uint32(0)
	for e.got.Messages < uint64(e.N) {
		if err := e.receive(int(min(uint64(e.N)-e.got.Messages, batch))); err != nil {
			return err
		}
		if e.got.Messages-uint64(told) < credit {
			continue
		}
		if e.signaled == depth/2 {
			if err := e.reap(batch, false); err != nil {
				return err
			}
		}
		told = uint32(e.got.Messages)
		binary.NativeEndian.PutUint32(e.smallData[:], told)
		if err := e.postInline(4, e.peer.Addr+2*uint64(e.stride)); err != nil {
			return err
		}
	}
	return nil
}
