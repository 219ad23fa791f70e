package rmsg

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Status is the state of a [Buffer]: it determines whether program or connection may use it.
type Status int32

const (
	Free     Status = iota // owned by the program, which may fill and post it
	Queued                 // owned by the connection until it is Sent or Failed
	Sent                   // owned by the program again; the message is in flight or has arrived
	Failed                 // owned by the program again; the connection ended first, see [Buffer.Err]
	Received               // holds a message; owned by the program until it frees it
	Released               // freed: must no longer be used
)

func (s Status) String() string {
	names := [...]string{"free", "queued", "sent", "failed", "received", "released"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Buffer is registered memory for one message of one connection, to send from [Conn.Alloc] or
// received. Status may be called by any goroutine; all other methods by one at a time.
type Buffer struct {
	c            *Conn
	mr           *uverbs.MR
	mem          []byte // room for a frame's header and the message
	at           int    // offset of mem in mr
	n            int    // length of the message
	slot         int    // index of the receive
	source       memSource
	readable     bool // the peer may read it
	freeWhenSent bool // made by Send: freed when it is sent
	err          error
	status       atomic.Int32
}

// memSource is the part of the arena that a buffer's memory belongs to.
type memSource uint8

const (
	fromSlot    memSource = iota // a slot of a receive
	fromStaging                  // the staging region, for small messages to send
	fromRegion                   // a separate region
	fromHeap                     // none, after the end of the connection
)

// Status returns the state of the buffer.
func (b *Buffer) Status() Status { return Status(b.status.Load()) }

func (b *Buffer) set(s Status) { b.status.Store(int32(s)) }

// Bytes returns the message, or the room for one, or nil once the buffer is freed. The program must
// not use the memory while the buffer is queued or after it is freed.
func (b *Buffer) Bytes() []byte {
	if b.Status() == Released {
		return nil
	}
	return b.mem[headerSize : headerSize+b.n]
}

// Cap returns the size of the largest message that the buffer holds.
func (b *Buffer) Cap() int { return len(b.mem) - headerSize }

// SetLen sets the length of the message to send, from 0 to Cap.
func (b *Buffer) SetLen(n int) error {
	const op = "set length of"
	if n < 0 || n > b.Cap() {
		return fail(op, "message buffer", fmt.Errorf("%d of %d bytes: %w", n, b.Cap(), verbs.ErrRange))
	}
	if !b.ownedByProgram() {
		return fail(op, "message buffer", fmt.Errorf("it is %v: %w", b.Status(), ErrBuffer))
	}
	b.n = n
	return nil
}

// ownedByProgram reports whether the program may fill and post the buffer.
func (b *Buffer) ownedByProgram() bool {
	s := b.Status()
	return s == Free || s == Sent || s == Failed
}

// Conn returns the connection of the buffer.
func (b *Buffer) Conn() *Conn { return b.c }

// Err returns the error of the connection if the buffer's status is Failed, otherwise nil.
func (b *Buffer) Err() error {
	if b.Status() != Failed {
		return nil
	}
	return b.err
}

// Free releases the buffer. For a received message it also lets the peer send another.
// For a queued buffer it fails with [ErrBuffer], for a freed one it does nothing.
func (b *Buffer) Free() error {
	for {
		st := b.Status()
		switch st {
		case Released:
			return nil
		case Queued:
			return fail("free", "message buffer", fmt.Errorf("it is %v: %w", st, ErrBuffer))
		}
		if b.status.CompareAndSwap(int32(st), int32(Released)) {
			if st == Received {
				b.c.bufferFreed(b)
			}
			b.c.arena.put(b)
			return nil
		}
	}
}
