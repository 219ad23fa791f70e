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

// waitWritten waits until message i has been written.
func (e *end) waitWritten(i uint32) {
	at := e.stride + int(e.Size) - 1
	word := e.mr.Word(at &^ 3)
	var b [4]byte
	for {
		binary.NativeEndian.PutUint32(b[:], word.Load())
		if b[at&3] == byte(i+1) {
			break
		}
	}
	e.got.Messages++
	e.got.Bytes += uint64(e.Size)
}

func (e *end) ping(took []time.Duration) (err error) {
	var last time.Duration
	for i := range e.N {
		switch e.Op {
		case verbs.OpSend:
			if err = e.sendMessage(i); err == nil {
				err = e.receive(1)
			}
		case verbs.OpRDMAWrite:
			if err = e.sendMessage(i); err == nil {
				e.waitWritten(i)
			}
		default:
			if err = e.post(1); err == nil {
				err = e.reap(1, e.Events != 0)
			}
			e.got.Messages++
			e.got.Bytes += uint64(e.Size)
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

func (e *end) pong() (err error) {
	for i := range e.N {
		if e.Op == verbs.OpSend {
			err = e.receive(1)
		} else {
			e.waitWritten(i)
		}
		if err == nil {
			err = e.sendMessage(i)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
