package main

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
)

// sendMessage sends message i of a latency test. Once per period it waits for a completion.
func (e *end) sendMessage(i uint32) error {
	if e.Op == verbs.OpRDMAWrite {
		e.out[e.Size-1] = byte(i + 1)
	}
	if i%period == period-1 && i > period {
		if err := e.reap(1, e.Events != 0); err != nil {
			return err
		}
	}
	return e.post(1)
}

// awaitMessage waits until message i has been received, or written.
func (e *end) awaitMessage(i uint32) error {
	if e.Op == verbs.OpSend {
		return e.receive(1, e.Events != 0)
	}
	at := e.stride + int(e.Size) - 1
	word := e.mr.Word(at &^ 3)
	var b [4]byte
	for {
		binary.NativeEndian.PutUint32(b[:], word.Load())
		if b[at&3] == byte(i+1) {
			return nil
		}
	}
}

func (e *end) ping(took []time.Duration) (err error) {
	var last time.Duration
	for i := range e.N {
		if e.fetches() {
			if err = e.post(1); err == nil {
				err = e.reap(1, e.Events != 0)
			}
		} else if err = e.sendMessage(i); err == nil {
			err = e.awaitMessage(i)
		}
		if err != nil {
			return err
		}
		t := time.Since(e.start)
		if i >= e.warm {
			took[i-e.warm] = t - last
		}
		last = t
	}
	return nil
}

func (e *end) pong() error {
	for i := range e.N {
		if err := e.awaitMessage(i); err != nil {
			return err
		}
		if err := e.sendMessage(i); err != nil {
			return err
		}
	}
	return nil
}

// stream sends all messages, as fast as the queues accept them and the peer receives, until
// the peer has all.
func (e *end) stream() error {
	completed := uint32(0)
	for completed < e.N || e.Op == verbs.OpSend && e.word.Load() < e.N {
		for e.posted < e.N {
			k := min(e.N-e.posted, e.List)
			if e.posted+k > completed+depth || e.Op == verbs.OpSend && e.posted+k > e.word.Load()+recvs {
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
	return nil
}

// receiveAll receives all messages, and notifies the sender.
func (e *end) receiveAll() error {
	told := uint32(0)
	for e.got < e.N {
		if err := e.receive(batch, false); err != nil {
			return err
		}
		if e.got-told < credit && e.got < e.N {
			continue
		}
		if e.signaled == depth/2 {
			if err := e.reap(batch, false); err != nil {
				return err
			}
		}
		told = e.got
		if err := e.postWord(told, e.peer.Addr+2*uint64(e.stride)); err != nil {
			return err
		}
	}
	return nil
}
