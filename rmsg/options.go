package rmsg

import (
	"cmp"
	"log/slog"
	"math"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/option"
)

// Callbacks are the functions that a loop calls, one at a time, on the goroutine that runs it. Each
// is optional. They must not call methods that wait for the loop: Dial, Listener.Accept, and Send,
// Recv and Shutdown of connections. To send, they call [Conn.Post]: if it returns [ErrWouldBlock],
// they post the message again when Writable is called, as in the example.
//
// A panic in a callback ends Run and closes the loop, which calls no callback any more.
type Callbacks struct {
	// Request is called when a peer requests a connection. It calls Accept or Reject; an unanswered
	// request is rejected when it returns. By default requests wait for [Listener.Accept].
	Request func(*Request)
	// Established is called when a connection is up, on either side.
	Established func(*Conn)
	// Message is called for each received message. The program must free the buffer, in
	// the callback or later. By default messages wait for [Conn.Recv].
	Message func(*Conn, *Buffer)
	// Sent is called when the program owns a posted buffer again: its status is Sent,
	// or Failed if the connection ended first.
	Sent func(*Conn, *Buffer)
	// Writable is called when a connection whose Post returned ErrWouldBlock has room for half a SendQueue.
	Writable func(*Conn)
	// Disconnected is called when a connection has ended or failed to connect.
	Disconnected func(c *Conn, why error)
}

// Options configures a loop and its connections. The zero value is usable. In numbers, zero
// means the default; a value out of range is refused with [verbs.ErrRange].
type Options struct {
	Callbacks Callbacks

	// Credits is the number of messages that a peer may send before the program frees
	// some: 1 to 4096, by default 32. Holding more than half of them slows down the peer.
	Credits int
	// Eager is the size in bytes up to which a message is sent at once; the peer reads
	// larger ones when it is ready for them. 64 to 1 MiB, by default 16 KiB; the smaller
	// value of both sides applies. It is also the size of a receive.
	Eager int
	// MaxMessage is the size in bytes of the largest message to receive, up to 1 GiB, by
	// default 16 MiB; a negative value allows only empty messages.
	MaxMessage int
	// Window limits the bytes of messages above Eager of each connection: in one direction messages
	// that it has read and the program has not freed, in the other messages that [Conn.Send] has
	// copied and the peer has not read. One message in each direction is always allowed. By default
	// 1 MiB, at most 1 GiB; a negative value allows only that one.
	Window int
	// SendQueue is the number of messages of each connection that may be posted and not
	// yet sent: 1 to 4096, by default 64.
	SendQueue int
	// SendBuffer is the size in bytes of each connection's memory for Send's copies of
	// messages up to Eager. 4 KiB to 1 GiB, by default 64 KiB, or 3 * Eager if that is more.
	SendBuffer int
	// Cache is the number of bytes of freed messages above Eager that the loop caches for
	// all connections. By default 4 MiB, at most 1 GiB; a negative value disables it.
	Cache int
	// ConnectTimeout bounds connecting and accepting, by default 10 s; a negative value
	// means no limit but the kernel's.
	ConnectTimeout time.Duration
	// Linger bounds the duration of Disconnect, by default 10 s; a negative value means no
	// limit. It may also pass if the peer's last packet is lost: that is no error.
	Linger time.Duration

	// RetryCount is how often a request to a peer that does not answer is repeated, as in
	// [cm.Options]: 6 by default, at most 7. With less, a dead peer is noticed sooner, and a bad
	// network ends connections sooner.
	RetryCount int
	// KeepAlive is the interval of the test of a connection, which the peer's program does not see:
	// an idle connection does not notice otherwise that its peer's machine is gone. Zero means 15
	// s, a negative value disables the test. Its failure ends the connection with
	// [verbs.ErrDisconnected]: on RoCE some 4 s later, on iWARP when TCP gives up. A goroutine must
	// run the loop.
	KeepAlive time.Duration

	// Transport selects the RDMA devices; nil means [cm.DefaultTransport].
	Transport *cm.Transport
	// Logger, if set, logs established and ended connections at level Debug, and at level
	// Warn peers that are rejected or violate the protocol, and what no call returns.
	Logger *slog.Logger
}

// Limits and internal sizes.
const (
	maxCount = 4096
	maxEager = 1 << 20
	minEager = 64
	maxSize  = 1 << 30
	// maxBatch is the most messages that are posted with one doorbell.
	maxBatch = 8
	// maxAnnounced is the most messages above Eager that a connection has announced and the peer
	// has not read. With more, a wake-up of either side more often finds several messages to read,
	// or acks of several; each takes another receive, see extraReceives.
	maxAnnounced = 8
	// maxReads is the most RDMA READs that a connection has in flight, readSize the most
	// bytes of each.
	maxReads = 4
	readSize = 1 << 20
	// flushTime bounds the wait for the reason after a QP has failed.
	flushTime = 3 * time.Second
)

// defaultEager is the largest size at which BenchmarkThreshold finds messages sent whole clearly
// faster than announced ones on both drivers. Larger receives would be most of a connection's memory,
// which grows with it: 1.5 MiB with 32 KiB. µs of a message, by a clock that counts instructions:
//
//	                  8 KiB  16 KiB  32 KiB  64 KiB  128 KiB  512 KiB
//	rxe  whole          103     180     335     622     1177     4517
//	     announced      139     207     337     609     1155     4577
//	siw  whole           36      53      80     125      215      715
//	     announced      117     126     141     188      298      930
const defaultEager = 16 << 10

func (o Options) withDefaults() (Options, error) {
	o.ConnectTimeout = timeout(o.ConnectTimeout, 10*time.Second)
	o.Linger = timeout(o.Linger, 10*time.Second)
	o.KeepAlive = option.KeepAlive(o.KeepAlive)
	retries := o.RetryCount // which package cm replaces
	return o, option.Set(
		option.Size("Credits", &o.Credits, 32, 1, maxCount),
		option.Size("Eager", &o.Eager, defaultEager, minEager, maxEager),
		option.Size("MaxMessage", &o.MaxMessage, 16<<20, 0, maxSize),
		option.Size("Window", &o.Window, 1<<20, 0, maxSize),
		option.Size("SendQueue", &o.SendQueue, 64, 1, maxCount),
		option.Size("RetryCount", &retries, 0, 0, 7),
		option.Size("SendBuffer", &o.SendBuffer, max(64<<10, 3*o.Eager), 4<<10, maxSize),
		option.Size("Cache", &o.Cache, 4<<20, 0, maxSize),
	)
}

// timeout returns d, the default if d is zero, or practically no limit if it is negative.
func timeout(d, otherwise time.Duration) time.Duration {
	if d < 0 {
		return math.MaxInt64
	}
	return cmp.Or(d, otherwise)
}

// extraReceives is the number of receives beyond the credits, for frames without a message: acks,
// see flushAck, a hello, and byes.
const extraReceives = maxAnnounced + 3 + 1 + 2

func (o *Options) sends() int {
	return o.SendQueue + maxAnnounced + 2*maxReads + 1 + 4 + 1
}
func (o *Options) receives() int { return o.Credits + extraReceives }
