package rmsg

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Callbacks are what a loop calls, on the goroutine that is in [Loop.Dispatch]
// or [Loop.Run], one at a time. They may call anything that does not wait. What
// takes a context waits for the loop, so it returns [ErrDispatching] to a
// callback, as Dispatch does. The way to send is [Socket.Post]: when it returns
// [ErrWouldBlock], keep the message and post it when Writable is called, as in
// the example. Another goroutine may wait while a callback runs. Callbacks that
// are nil are not called, with no other effect except where it says so.
//
// A panic in a callback ends Dispatch or Run. A program that recovers it may call
// them again: what the callback was called for counts as handled, and the rest
// follows.
type Callbacks struct {
	// Request is a peer that asks for a connection: call Accept or Reject. What
	// is neither when it returns is rejected. If it is nil, requests wait for
	// [Listener.Accept] for a while, and are rejected then.
	Request func(*Request)
	// Established is a socket that is up, on either side.
	Established func(*Socket)
	// Message is a message that was received. The program frees the buffer
	// when it has done with it, in the callback or later. If it is nil,
	// messages wait for [Socket.Recv].
	Message func(*Socket, *Buffer)
	// Sent is a buffer, given to Post, that is the program's again: its status
	// is Sent, or Failed if the socket ended before.
	Sent func(*Socket, *Buffer)
	// Writable is a socket whose Post gave ErrWouldBlock and that has room now.
	Writable func(*Socket)
	// Disconnected is the last that is heard of a socket, in whichever way it
	// ended or failed to connect: see [Socket.Err].
	Disconnected func(s *Socket, why error)
}

// Options describe a loop. The zero value is usable.
type Options struct {
	Callbacks Callbacks

	// Credits is how many messages a peer may send before the program has freed
	// some; 1 to 4096, zero is 32. A program that keeps more than half of them
	// to itself slows its peer down.
	Credits int
	// Eager is the largest message, in bytes, that is sent at once; the peer
	// reads larger ones when it is ready for them. 64 to 1 MiB; the smaller one
	// of both sides counts. Zero is 16 KiB: from there on it makes little
	// difference on rxe. Programs on siw with memory to spare gain up to 256
	// KiB, see BenchmarkThreshold.
	Eager int
	// MaxMessage is the largest message, in bytes, to take, up to 1 GiB; zero is
	// 16 MiB. A peer learns it when it connects, and its Post of a larger one
	// gives ErrTooLarge.
	MaxMessage int
	// Window is how many bytes of messages above Eager are fetched, for each
	// socket, before the program has freed those it has. One is fetched in any
	// case. Zero is 4 MiB.
	Window int
	// SendQueue is how many messages, for each socket, may be posted and not yet
	// sent; 1 to 4096, zero is 64.
	SendQueue int
	// Backlog is how many requests may wait for [Listener.Accept], and
	// AnswerTimeout for how long; zero is 128, and 3 s. Others are rejected.
	Backlog       int
	AnswerTimeout time.Duration
	// ConnectTimeout bounds connecting, on both sides; zero is 10 s.
	ConnectTimeout time.Duration
	// Linger bounds what Disconnect waits for; zero is 10 s.
	Linger time.Duration
}

// What a loop adds to what its program asked for.
const (
	maxCount = 4096
	maxEager = 1 << 20
	minEager = 64
	maxSize  = 1 << 30

	// maxAnnounced is how many messages above Eager a socket has announced and
	// the peer not yet read.
	maxAnnounced = 8
	// maxReads is how many RDMA READs a socket has in flight, and readSize how
	// much each reads at most.
	maxReads = 4
	readSize = 1 << 20
	// flushTime is how long after the QP has failed the reason is waited for.
	flushTime = 3 * time.Second
	// maxHellos is how often each side says hello.
	maxHellos = 4
	// spare is how many receives there are beside those that credits stand
	// for: for frames without a message, see flushAck.
	spare = maxAnnounced + 3 + maxHellos + 2
)

func (o *Options) check() error {
	o.Credits = cmp.Or(o.Credits, 32)
	o.Eager = cmp.Or(o.Eager, defaultEager)
	o.MaxMessage = cmp.Or(o.MaxMessage, 16<<20)
	o.Window = cmp.Or(o.Window, 4<<20)
	o.SendQueue = cmp.Or(o.SendQueue, 64)
	o.Backlog = cmp.Or(o.Backlog, 128)
	o.AnswerTimeout = cmp.Or(o.AnswerTimeout, 3*time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 10*time.Second)
	o.Linger = cmp.Or(o.Linger, 10*time.Second)
	for _, c := range []struct {
		name             string
		value, low, high int64
	}{
		{"Credits", int64(o.Credits), 1, maxCount},
		{"Eager", int64(o.Eager), minEager, maxEager},
		{"MaxMessage", int64(o.MaxMessage), 0, maxSize},
		{"Window", int64(o.Window), 0, 1 << 40},
		{"SendQueue", int64(o.SendQueue), 1, maxCount},
		{"Backlog", int64(o.Backlog), 1, 1 << 20},
		{"AnswerTimeout", int64(o.AnswerTimeout), 0, math.MaxInt64},
		{"ConnectTimeout", int64(o.ConnectTimeout), 0, math.MaxInt64},
		{"Linger", int64(o.Linger), 0, math.MaxInt64},
	} {
		if c.value < c.low || c.value > c.high {
			return fmt.Errorf("%s of %d is not in %d to %d: %w", c.name, c.value, c.low, c.high, unix.EINVAL)
		}
	}
	return nil
}

// defaultEager was found by BenchmarkThreshold.
const defaultEager = 16 << 10

// sends, receives are how many requests a socket has in its queues at most.
func (o *Options) sends() int    { return o.SendQueue + maxAnnounced + 2*maxReads + 2*maxHellos + 4 }
func (o *Options) receives() int { return o.Credits + spare }
