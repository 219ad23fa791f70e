package rmsg

import (
	"fmt"
	"sync/atomic"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// Status is whose a [Buffer] is.
type Status int32

const (
	Free     Status = iota // the program's, to fill and to post
	Queued                 // the socket's, until it is Sent or Failed
	Sent                   // the program's again; the message is on its way or there
	Failed                 // the program's again; the socket ended first, see [Buffer.Err]
	Received               // holds a message, the program's until it frees it
	Released               // freed: not to be used any more
)

func (s Status) String() string {
	names := [...]string{"free", "queued", "sent", "failed", "received", "released"}
	if s < 0 || int(s) >= len(names) {
		return "unknown"
	}
	return names[s]
}

// Buffer is registered memory for one message of one socket. [Socket.Alloc]
// makes it, or a message that comes. Its memory outlives socket and loop until
// it is freed.
//
// Status may be asked for by any goroutine; all else is for one at a time.
type Buffer struct {
	s      *Socket
	mr     *uverbs.MR
	mem    []byte // room for a frame, and for the message
	at     int    // where mem starts in mr
	n      int    // of the message
	slot   int    // index of a receive; -1 for others
	class  int    // of a large one; -1 for others
	auto   bool   // freed when it is sent
	err    error
	status atomic.Int32
}

// Status says whose the buffer is.
func (b *Buffer) Status() Status { return Status(b.status.Load()) }

func (b *Buffer) set(s Status) { b.status.Store(int32(s)) }

// Bytes is the message, or the room for one; nil once the buffer is freed. The
// program may not touch it while the buffer is queued, nor after it is freed.
func (b *Buffer) Bytes() []byte {
	if b.Status() == Released {
		return nil
	}
	return b.mem[headerSize : headerSize+b.n]
}

// Cap is the largest message the buffer holds.
func (b *Buffer) Cap() int { return len(b.mem) - headerSize }

// SetLen sets the length of the message to send, from 0 to Cap.
func (b *Buffer) SetLen(n int) error {
	if n < 0 || n > b.Cap() {
		return fail("set length of", "message buffer", fmt.Errorf("%d of %d bytes: %w", n, b.Cap(), verbs.ErrRange))
	}
	if !b.mine() {
		return fail("set length of", "message buffer", fmt.Errorf("it is %v: %w", b.Status(), ErrBuffer))
	}
	b.n = n
	return nil
}

// mine tells whether the program may fill and post the buffer.
func (b *Buffer) mine() bool {
	s := b.Status()
	return s == Free || s == Sent || s == Failed
}

// Socket is the one the buffer belongs to.
func (b *Buffer) Socket() *Socket { return b.s }

// Err is why the buffer's status is Failed: what the socket's Err says.
func (b *Buffer) Err() error {
	if b.Status() != Failed {
		return nil
	}
	return b.err
}

// Free gives the buffer back, a received one to its sender, who may send
// another then. A queued one is refused; one that is freed already is left
// alone.
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
