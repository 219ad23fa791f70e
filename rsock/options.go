package rsock

import (
	"cmp"
	"time"
)

// Options tune connections. The zero value is right for most, and as C's
// rsockets are.
type Options struct {
	// ReadBuffer and WriteBuffer are the sizes of the rings in bytes, rounded up
	// to pages: at least 4 KiB, at most 512 MiB. Zero is 256 KiB, twice what C's
	// have and a tenth faster, or less if the process's locked memory is limited
	// (ulimit -l): left*left/limit/96 bytes, where left is how much of the limit
	// is not used yet. Of 8 MiB the first connection gets two rings of 84 KiB,
	// the 50th of 16 KiB, and there is room for 250. If there is no memory for
	// rings of these sizes, they are halved until there is.
	ReadBuffer, WriteBuffer int
	// SendQueue and RecvQueue are how many requests the queues take, at least
	// 16 and at most 65534; zero is 384. RecvQueue is how many messages the
	// peer may have under way.
	SendQueue, RecvQueue int
	// Inline is how many bytes at most are copied into the request itself;
	// zero is 64, negative none.
	Inline int
	// SpinTime is how long at most a call that has to wait looks for what it
	// waits for before it sleeps; zero is 1 ms, negative not at all. It looks
	// for 10 us; and for an answer to what has been written, if those of late
	// came within SpinTime, for twice as long as they took, which is when
	// sleeping would take as long again (TestStream in tests/bench). One
	// connection of the process does that at a time.
	SpinTime time.Duration
	// KeepAlive is how often a connection is tested that nothing is written
	// to; zero is 15 s, negative never. See [Conn.SetKeepAlivePeriod].
	KeepAlive time.Duration
}

const (
	defaultBuffer    = 256 << 10
	minBuffer        = 4 << 10
	maxBuffer        = 512 << 20 // a message counts up to half of it
	defaultQueue     = 384
	minQueue         = 16
	maxQueue         = 0xfffe
	defaultInline    = 64
	defaultSpin      = time.Millisecond
	defaultKeepAlive = 15 * time.Second

	// linger bounds Close: with a peer that takes nothing, C waits for ever.
	linger = 10 * time.Second
	// lastMoment is how long Close waits on iWARP for the peer to end a
	// connection of which TCP has everything.
	lastMoment = 200 * time.Millisecond
	// lastAck is how long it waits on RoCE for a peer that said DISCONNECT to do
	// so.
	lastAck = 50 * time.Millisecond

	ctrlQueue = 4  // send requests for control messages
	spare     = 16 // receives beyond those that peers are told of: for their control messages
	maxChunk  = 64 << 10
	lowWater  = 2 << 10 // Write waits for room for this much
	page      = 4 << 10
)

func (o Options) withDefaults() Options {
	usual := 0
	if o.ReadBuffer == 0 || o.WriteBuffer == 0 {
		usual = usualBuffer()
	}
	buffer := func(v int) int {
		v = min(max(cmp.Or(v, usual), minBuffer), maxBuffer)
		return (v + page - 1) &^ (page - 1)
	}
	queue := func(v int) int { return min(max(cmp.Or(v, defaultQueue), minQueue), maxQueue) }
	o.ReadBuffer, o.WriteBuffer = buffer(o.ReadBuffer), buffer(o.WriteBuffer)
	o.SendQueue, o.RecvQueue = queue(o.SendQueue), queue(o.RecvQueue)
	o.Inline = max(cmp.Or(o.Inline, defaultInline), 0)
	o.SpinTime = max(cmp.Or(o.SpinTime, defaultSpin), 0)
	o.KeepAlive = max(cmp.Or(o.KeepAlive, defaultKeepAlive), 0)
	return o
}

// halve makes the rings half as large and reports whether that was possible.
func (o *Options) halve() bool {
	if o.ReadBuffer == minBuffer && o.WriteBuffer == minBuffer {
		return false
	}
	half := func(v int) int { return max(v/2&^(page-1), minBuffer) }
	o.ReadBuffer, o.WriteBuffer = half(o.ReadBuffer), half(o.WriteBuffer)
	return true
}
