package rmsg

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Status says who may use a [Buffer].
type Status int32

const (
	Free     Status = iota // the program's, to fill and to post
	Queued                 // the socket's, until it is Sent or Failed
	Sent                   // the program's again; the message is on its way or there
	Failed                 // the program's again; the socket ended first, see [Buffer.Err]
	Received               // holds a message, the program's until it frees it
	Released               // freed: must not be used any more
)

func (s Status) String() string {
	names := [...]string{"free", "queued", "sent", "failed", "received", "released"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Buffer is memory for one message of one socket. [Socket.Alloc] makes one to send, in
// registered memory, and a message that arrives is in one. The memory outlives socket and
// loop until it is freed.
//
// Status may be called by any goroutine; all else by one at a time.
type Buffer struct {
	s        *Socket
	mr       *uverbs.MR
	mem      []byte // room for a frame's header, and for the message
	at       int    // where mem starts in mr
	n        int    // of the message
	slot     int    // index of a receive
	home     home
	readable bool // the peer may read it
	auto     bool // of Send: freed when it is sent
	err      error
	status   atomic.Int32
}

// home is where a buffer's memory comes from, see arena.
type home uint8

const (
	inSlot    home = iota // a receive
	inStaging             // the socket's memory for small messages to send
	inRegion              // a region of its own
)

// Status returns who may use the buffer.
func (b *Buffer) Status() Status { return Status(b.status.Load()) }

func (b *Buffer) set(s Status) { b.status.Store(int32(s)) }

// Bytes returns the message, or the room for one; nil once the buffer is freed. The
// program must not touch it while the buffer is queued, nor after it is freed.
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
	if !b.mine() {
		return fail(op, "message buffer", fmt.Errorf("it is %v: %w", b.Status(), ErrBuffer))
	}
	b.n = n
	return nil
}

// mine reports whether the program may fill and post the buffer.
func (b *Buffer) mine() bool {
	s := b.Status()
	return s == Free || s == Sent || s == Failed
}

// Socket returns the socket of the buffer.
func (b *Buffer) Socket() *Socket { return b.s }

// Err returns why the buffer's status is Failed: the error of the socket's Err.
func (b *Buffer) Err() error {
	if b.Status() != Failed {
		return nil
	}
	return b.err
}

// Free releases the buffer; of a received message it also lets the peer send another.
// Free of a queued buffer fails with [ErrBuffer]; of a freed one it does nothing.
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
				b.s.freed(b)
			}
			b.s.arena.put(b)
			return nil
		}
	}
}
