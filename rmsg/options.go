package rmsg

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/goverbs/verbs"
)

// Callbacks are the functions that a loop calls, one at a time, on the goroutine that
// runs it. They may call everything that does not wait. A method that takes a context
// waits for the loop, so it returns [ErrDispatching] to a callback, as Dispatch does.
// The way to send is [Socket.Post]: when it returns [ErrWouldBlock], keep the message
// and post it when Writable is called, as in the example. Other goroutines may wait
// while a callback runs.
//
// Each callback is optional. The default of Request is to wait for [Listener.Accept],
// that of Message to wait for [Socket.Recv]; the others do nothing by default.
//
// A panic in a callback ends Dispatch or Run. A program that recovers it may call
// them again: the event of that callback counts as handled, and the rest follows.
type Callbacks struct {
	// Request is called when a peer requests a connection. It calls Accept or
	// Reject; a request without an answer is rejected when it returns. By
	// default requests wait for [Listener.Accept], and are rejected after
	// [ListenConfig].AnswerTimeout.
	Request func(*Request)
	// Established is called when a socket is up, on either side.
	Established func(*Socket)
	// Message is called with each message that was received. The program frees
	// the buffer, in the callback or later. By default messages wait for
	// [Socket.Recv], and the peer can send no more than Options.Credits allow.
	Message func(*Socket, *Buffer)
	// Sent is called when a posted buffer is the program's again: its status is
	// Sent, or Failed if the socket ended first.
	Sent func(*Socket, *Buffer)
	// Writable is called when a socket whose Post returned ErrWouldBlock has room.
	Writable func(*Socket)
	// Disconnected is the last callback of a socket, however it ended or failed to
	// connect: see [Socket.Err].
	Disconnected func(s *Socket, why error)
}

// Options describe a loop and its sockets. The zero value is usable. Of numbers, zero is
// the default, and one that is out of range is refused with [verbs.ErrRange].
type Options struct {
	Callbacks Callbacks

	// Credits is how many messages a peer may send before the program has freed some:
	// 1 to 4096, by default 32. A program that holds more than half of them slows its
	// peer down.
	Credits int
	// Eager is the largest message, in bytes, that is sent at once; the peer reads
	// larger ones when it is ready for them. 64 to 1 MiB, by default 8 KiB. The smaller
	// one of both sides counts. It is also the size of a receive: programs with memory
	// to spare send messages of up to 16 KiB faster with an Eager of that size, and on siw
	// gain up to 256 KiB, and programs with small messages and many sockets save memory,
	// see BenchmarkThreshold.
	Eager int
	// MaxMessage is the largest message, in bytes, to receive, up to 1 GiB, by default
	// 16 MiB; a negative number takes empty messages only. A peer learns it when it
	// connects, and its Post of a larger message returns ErrTooLarge.
	MaxMessage int
	// Window limits, for each socket, the bytes of messages above Eager that it reads
	// before the program has freed earlier ones, and the bytes of those that
	// [Socket.Send] has copied and the peer has not read. One message each way is
	// allowed whatever its size. By default 1 MiB, at most 1 GiB; a negative number allows only
	// the one.
	Window int
	// SendQueue is how many messages, for each socket, may be posted and not yet
	// sent: 1 to 4096, by default 64.
	SendQueue int
	// SendBuffer is the registered memory, in bytes for each socket, that Send copies
	// messages up to Eager to; it waits while the memory is in use. Alloc takes from
	// it what fits. 4 KiB to 1 GiB, by default 64 KiB, or 3 * Eager if that is more.
	SendBuffer int
	// Cache is how many bytes of registered memory of messages above Eager the loop
	// keeps for the next ones, all sockets together, for at most a second. By
	// default 4 MiB, at most 1 GiB; a negative number keeps none.
	Cache int
	// ConnectTimeout bounds connecting, on both sides: by default 10 s. A negative one
	// leaves it to the context and the kernel.
	ConnectTimeout time.Duration
	// Linger bounds how long Disconnect may take: by default 10 s, and
	// without a limit if it is negative.
	Linger time.Duration

	// Logger receives, at level Debug, the connections that come and go; and at level
	// Warn peers that are rejected, that break the protocol or do not answer, and
	// failures that no call returns. Nil logs nothing.
	Logger *slog.Logger
}

// Limits and internal sizes.
const (
	maxCount = 4096
	maxEager = 1 << 20
	minEager = 64
	maxSize  = 1 << 30
	// maxBatch is how many messages are posted with one doorbell at most.
	maxBatch = 8
	// maxAnnounced is how many messages above Eager a socket has announced and
	// the peer not yet read.
	maxAnnounced = 4
	// maxReads is how many RDMA READs a socket has in flight, and readSize how
	// much each reads at most.
	maxReads = 4
	readSize = 1 << 20
	// flushTime is how long after the QP has failed the reason is waited for.
	flushTime = 3 * time.Second
)

// defaultEager bounds the memory of a socket. BenchmarkStream shows what it costs.
const defaultEager = 8 << 10

// withDefaults returns the options with their zero values replaced.
func (o Options) withDefaults() (Options, error) {
	o.Credits = cmp.Or(o.Credits, 32)
	o.Eager = cmp.Or(o.Eager, defaultEager)
	o.MaxMessage = max(cmp.Or(o.MaxMessage, 16<<20), 0)
	o.Window = max(cmp.Or(o.Window, 1<<20), 0)
	o.SendQueue = cmp.Or(o.SendQueue, 64)
	o.SendBuffer = cmp.Or(o.SendBuffer, max(64<<10, 3*o.Eager))
	o.Cache = max(cmp.Or(o.Cache, 4<<20), 0)
	o.ConnectTimeout = timeout(o.ConnectTimeout, 10*time.Second)
	o.Linger = timeout(o.Linger, 10*time.Second)
	for _, f := range []struct {
		name        string
		v, min, max int
	}{
		{"Credits", o.Credits, 1, maxCount},
		{"Eager", o.Eager, minEager, maxEager},
		{"MaxMessage", o.MaxMessage, 0, maxSize},
		{"Window", o.Window, 0, maxSize},
		{"SendQueue", o.SendQueue, 1, maxCount},
		{"SendBuffer", o.SendBuffer, 4 << 10, maxSize},
		{"Cache", o.Cache, 0, maxSize},
	} {
		if f.v < f.min || f.v > f.max {
			return o, outOfRange(f.name, f.v, f.min, f.max)
		}
	}
	return o, nil
}

func outOfRange(name string, v, min, max int) error {
	return fmt.Errorf("option %s is %d: %w: %d to %d", name, v, verbs.ErrRange, min, max)
}

// timeout is d, the default if it is zero, and practically none if it is negative.
func timeout(d, otherwise time.Duration) time.Duration {
	if d < 0 {
		return math.MaxInt64
	}
	return cmp.Or(d, otherwise)
}

// spare is how many receives there are beside those of credits, for frames
// without a message: acks, see flushAck, a hello, and byes.
const spare = maxAnnounced + 3 + 1 + 2

// sends and receives are how many requests a socket has in its queues at most.
func (o *Options) sends() int {
	return o.SendQueue + maxAnnounced + 2*maxReads + 1 + 4
}
func (o *Options) receives() int { return o.Credits + spare }
