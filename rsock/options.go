package rsock

import (
	"time"

	"github.com/goverbs/verbs/internal/option"
)

// Options tunes connections. The zero value is right for most programs. Each field that
// is zero takes its default. A field that is out of range makes Dial and Listen fail
// with an error that matches [verbs.ErrRange].
type Options struct {
	// ReadBuffer and WriteBuffer are the sizes of the rings in bytes, from 4 KiB to 512 MiB,
	// rounded up to pages. Zero means 256 KiB, or less if the process's locked memory is limited
	// (ulimit -l): left*left/limit/96 bytes, where left is the unused part of the limit. With 8 MiB
	// the first connection gets two rings of 84 KiB, the 50th of 16 KiB, and there is room for 250,
	// or 120 on adapters, whose queues take locked memory too. If memory is short, the rings are
	// halved until it suffices; [Conn.Stats] reports their sizes.
	ReadBuffer, WriteBuffer int
	// IdleBuffer is the size of both rings of a new connection, 4 KiB or more, for servers most of
	// whose connections are idle; zero means ReadBuffer and WriteBuffer. A busy ring grows to these:
	// the receive ring when the peer has used it up 8 times within a second, the send ring when
	// Writes fill it. A send ring shrinks again when nothing has been written for one or two
	// intervals of KeepAlive. A receive ring does not, as the peer may write to it at any time.
	// With 8 KiB an idle connection has 16 KiB of registered memory, and on ConnectX 36 KiB of queues.
	IdleBuffer int
	// SendQueue and RecvQueue are the numbers of requests that the queues take, from
	// 16 to 65534; the device may allow fewer, as the error then says. RecvQueue bounds the
	// messages that the peer may have in flight. Zero means 254 and 238. With IdleBuffer, or if the
	// default size of the buffers is below 32 KiB, because locked memory is limited, it means 126
	// and 110, and below 16 KiB 62 and 46: a receive for each 128 bytes.
	SendQueue, RecvQueue int
	// Inline is the largest number of bytes that are copied into a request. Zero
	// means 64, a negative value none. The device has its own limit.
	Inline int
	// SpinTime bounds how long a blocked call polls before it sleeps. Zero means 1 ms on the
	// kernel's devices and no polling on those in user space, negative disables polling. A call
	// polls for 10 us. A Read that follows a Write, and so expects an answer, polls for twice the
	// time that recent answers took, if that is at most SpinTime (TestStream in tests/bench). One
	// connection of the process does so at a time, and none polls while other programs want the
	// processors.
	SpinTime time.Duration
	// RetryCount is how often a request to a peer that does not answer is repeated, as in
	// [cm.Options]: 6 by default, at most 7. With less, a dead peer is noticed sooner, and a bad
	// network ends connections sooner.
	RetryCount int
	// KeepAlive is the interval of the test of an idle connection. Zero means 15 s, a
	// negative value disables the test. See [Conn.SetKeepAlivePeriod].
	KeepAlive time.Duration
	// Linger bounds the wait of Close for written data to arrive. If it is negative, Close does not
	// wait, and the data is delivered in the background. Zero means 10 s for a Dialer, and no wait
	// for a Listener. See [Conn.Close], [Conn.SetLinger] and [Listener.Shutdown].
	Linger time.Duration
}

const (
	defaultBuffer = 256 << 10
	minBuffer     = 4 << 10
	maxBuffer     = 512 << 20 // a message can carry half of it
	minQueue      = 16
	maxQueue      = 0xfffe
	defaultInline = 64
	maxInline     = 64 << 10
	defaultSpin   = time.Millisecond

	// linger bounds the delivery after Close. C waits without a limit for a peer that does not
	// answer.
	linger = 10 * time.Second
	// disconnectTimeout is how long Close waits on iWARP for the peer to end a
	// connection after TCP has taken everything.
	disconnectTimeout = 200 * time.Millisecond
	// lastAckTimeout is how long Close waits on RoCE for a peer that sent DISCONNECT to end
	// the connection.
	lastAckTimeout = 50 * time.Millisecond

	ctrlQueue  = 4  // send requests for control messages
	spareRecvs = 16 // receives without credits, for control messages
	maxChunk   = 64 << 10
	lowWater   = 2 << 10 // Write waits for room for this much
	page       = 4 << 10

	idleRing = 16 << 10 // the ring whose queues a connection with IdleBuffer has
)

func (o Options) withDefaults() (Options, error) {
	bufSize := defaultBufferSize()
	ring := bufSize
	if o.IdleBuffer > 0 {
		ring = min(ring, idleRing)
	}
	sends, recvs := queueSizes(ring)
	retries := o.RetryCount // which package cm replaces
	err := option.Set(
		option.Size("ReadBuffer", &o.ReadBuffer, bufSize, minBuffer, maxBuffer),
		option.Size("WriteBuffer", &o.WriteBuffer, bufSize, minBuffer, maxBuffer),
		option.Size("IdleBuffer", &o.IdleBuffer, maxBuffer, minBuffer, maxBuffer),
		option.Size("SendQueue", &o.SendQueue, sends, minQueue, maxQueue),
		option.Size("RecvQueue", &o.RecvQueue, recvs, minQueue, maxQueue),
		option.Size("Inline", &o.Inline, defaultInline, 0, maxInline),
		option.Size("RetryCount", &retries, 0, 0, 7),
	)
	o.ReadBuffer, o.WriteBuffer, o.IdleBuffer = pages(o.ReadBuffer), pages(o.WriteBuffer), pages(o.IdleBuffer)
	o.KeepAlive = option.KeepAlive(o.KeepAlive)
	return o, err
}

func pages(n int) int { return (n + page - 1) &^ (page - 1) }

// halve makes the rings half as large and reports whether that was possible.
func (o *Options) halve() bool {
	if o.ReadBuffer == minBuffer && o.WriteBuffer == minBuffer {
		return false
	}
	half := func(v int) int { return max(v/2&^(page-1), minBuffer) }
	o.ReadBuffer, o.WriteBuffer = half(o.ReadBuffer), half(o.WriteBuffer)
	return true
}
