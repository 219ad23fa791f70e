package main

import (
	"encoding/binary"
	"time"

	"github.com/goverbs/verbs"
)

// sendMessage sends message i of a latency test. Once per period it waits for a completion.
func (c *conn) sendMessage(i uint32) error {
	if c.Op == verbs.OpRDMAWrite {
		c.out[c.Size-1] = byte(i + 1)
	}
	if i%period == period-1 && i > period {
		if err := c.reap(1, c.Events != 0); err != nil {
			return err
		}
	}
	return c.post(1)
}

// awaitMessage waits until message i has been received, or written.
func (c *conn) awaitMessage(i uint32) error {
	if c.Op == verbs.OpSend {
		return c.receive(1, c.Events != 0)
	}
	at := c.stride + int(c.Size) - 1
	word := c.mr.Word(at &^ 3)
	var b [4]byte
	for {
		binary.NativeEndian.PutUint32(b[:], word.Load())
		if b[at&3] == byte(i+1) {
			return nil
		}
	}
}

func (c *conn) ping(took []time.Duration) (err error) {
	var last time.Duration
	for i := range c.N {
		if c.fetches() {
			if err = c.post(1); err == nil {
				err = c.reap(1, c.Events != 0)
			}
		} else if err = c.sendMessage(i); err == nil {
			err = c.awaitMessage(i)
		}
		if err != nil {
			return err
		}
		t := time.Since(c.start)
		if i >= c.warm {
			took[i-c.warm] = t - last
		}
		last = t
	}
	return nil
}

func (c *conn) pong() error {
	for i := range c.N {
		if err := c.awaitMessage(i); err != nil {
			return err
		}
		if err := c.sendMessage(i); err != nil {
			return err
		}
	}
	return nil
}

// stream sends all messages, as fast as the queues accept them and the peer receives, until
// the peer has all.
func (c *conn) stream() error {
	completed := uint32(0)
	for completed < c.N || c.Op == verbs.OpSend && c.word.Load() < c.N {
		for c.posted < c.N {
			k := min(c.N-c.posted, c.List)
			if c.posted+k > completed+depth || c.Op == verbs.OpSend && c.posted+k > c.word.Load()+recvs {
				break
			}
			if err := c.post(k); err != nil {
				return err
			}
		}
		got, err := c.poll(c.SendCQ, batch) // not reap: the peer's notification may arrive first
		if err != nil {
			return err
		}
		c.signaled -= got
		if got > 0 {
			completed = uint32(c.wc[got-1].ID)
		}
		if c.before < c.warm && completed >= c.warm {
			c.before, c.start = completed, time.Now()
		}
	}
	return nil
}

// receiveAll receives all messages, and notifies the sender.
func (c *conn) receiveAll() error {
	told := uint32(0)
	for c.got < c.N {
		if err := c.receive(batch, false); err != nil {
			return err
		}
		if c.got-told < credit && c.got < c.N {
			continue
		}
		if c.signaled == depth/2 {
			if err := c.reap(batch, false); err != nil {
				return err
			}
		}
		told = c.got
		if err := c.postWord(told, c.peer.Addr+2*uint64(c.stride)); err != nil {
			return err
		}
	}
	return nil
}
