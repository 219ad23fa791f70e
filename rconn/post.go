package rconn

import (
	"github.com/goverbs/verbs"
)

// Post posts a request of any kind. Its local memory is the spans, wr.SGL or inline data.
// The Conn checks the spans and holds their regions until the request has completed. It
// does not check wr.SGL, wr.RemoteAddr and keys: a mistake there, or memory that is
// released too early, breaks the connection. See [Conn.PostTo] for memory that the peer
// advertised.
//
// Post does not wait. The error matches [verbs.ErrQueueFull] if there is no room, and
// [errors.ErrUnsupported] if the device lacks the operation: see the package
// documentation. The completion has wr.ID as its ID. wr, and what it points to except the
// memory of wr.SGL, may be reused when Post returns. Post does not allocate, but a local
// array that Inline refers to escapes to the heap: use memory that the caller reuses for
// inline data.
func (c *Conn) Post(wr verbs.SendWR, spans ...Span) error {
	return c.post(&request{wr: wr}, spans)
}

// PostTo is [Conn.Post] for an operation on the peer's memory: a WRITE, a READ, an atomic
// operation or a flush. The Conn checks the target's bounds, rights and alignment, and
// sets wr.RemoteAddr and wr.RKey.
func (c *Conn) PostTo(to Target, wr verbs.SendWR, spans ...Span) error {
	return c.post(&request{wr: wr, at: to, targeted: true}, spans)
}

// PostSend sends the spans as one message, for which the peer must have posted
// a receive. On iWARP a message that finds none breaks the connection.
func (c *Conn) PostSend(id uint64, flags verbs.SendFlags, spans ...Span) error {
	return c.Post(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: flags}, spans...)
}

// PostSendInline is [Conn.PostSend] of a copy of b, which needs no region and may be
// reused at once. [Options].MaxInline bounds its length.
func (c *Conn) PostSendInline(id uint64, flags verbs.SendFlags, b []byte) error {
	return c.Post(verbs.SendWR{ID: id, Opcode: verbs.OpSend, Flags: flags, Inline: b})
}

// PostSendImm is [Conn.PostSend] with an immediate: the peer's completion has
// [verbs.WCWithImm] in its Flags, and its Imm method returns imm. iWARP has no
// immediates.
func (c *Conn) PostSendImm(id uint64, flags verbs.SendFlags, imm uint32, spans ...Span) error {
	return c.Post(verbs.SendWR{ID: id, Opcode: verbs.OpSendImm, Flags: flags, Imm: imm}, spans...)
}

// PostSendInv is a [Conn.PostSend] that invalidates one of the peer's keys when the message
// arrives: that of a memory window, see [Conn.PostBind], or on iWARP that of a region. On
// RoCE the peer's completion has [verbs.WCWithInv] in its Flags, and its InvalidatedRKey
// method returns the key; siw does not report it. A key that cannot be invalidated breaks
// the connection.
func (c *Conn) PostSendInv(id uint64, flags verbs.SendFlags, key uint32, spans ...Span) error {
	return c.Post(verbs.SendWR{ID: id, Opcode: verbs.OpSendInv, Flags: flags, InvalidateRKey: key}, spans...)
}

// PostWrite writes the spans to consecutive bytes of the peer's memory. See
// [Conn.AwaitDelivery] for what its completion means.
func (c *Conn) PostWrite(id uint64, flags verbs.SendFlags, to Target, spans ...Span) error {
	return c.PostTo(to, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: flags}, spans...)
}

// PostWriteInline is [Conn.PostWrite] of a copy of b, as [Conn.PostSendInline].
func (c *Conn) PostWriteInline(id uint64, flags verbs.SendFlags, to Target, b []byte) error {
	return c.PostTo(to, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWrite, Flags: flags, Inline: b})
}

// PostWriteImm is [Conn.PostWrite] with an immediate, which consumes one of the peer's
// receives: it completes there with the opcode [verbs.WCRecvRDMAImm] when the bytes are
// in the peer's memory. Its ByteLen is the number of bytes written to the target; the
// receive's spans are not used. iWARP has no immediates.
func (c *Conn) PostWriteImm(id uint64, flags verbs.SendFlags, imm uint32, to Target, spans ...Span) error {
	return c.PostTo(to, verbs.SendWR{ID: id, Opcode: verbs.OpRDMAWriteImm, Flags: flags, Imm: imm}, spans...)
}

// PostRead fills the spans from the peer's memory. On iWARP, whose READ has one
// destination, it takes a request for each span.
func (c *Conn) PostRead(id uint64, flags verbs.SendFlags, from Target, spans ...Span) error {
	return c.PostTo(from, verbs.SendWR{ID: id, Opcode: verbs.OpRDMARead, Flags: flags}, spans...)
}

// PostFetchAdd adds to 8 bytes of the peer's memory, in its byte order, and stores their
// previous value in old, which has 8 bytes. See [Counter] for what atomics guarantee. siw
// has no atomics.
func (c *Conn) PostFetchAdd(id uint64, flags verbs.SendFlags, at Target, add uint64, old Span) error {
	return c.PostTo(at, verbs.SendWR{ID: id, Opcode: verbs.OpFetchAdd, Flags: flags, CompareAdd: add}, old)
}

// PostCompareSwap sets 8 bytes of the peer's memory to swap if they equal compare; for
// the rest see [Conn.PostFetchAdd].
func (c *Conn) PostCompareSwap(id uint64, flags verbs.SendFlags, at Target, compare, swap uint64, old Span) error {
	return c.PostTo(at, verbs.SendWR{ID: id, Opcode: verbs.OpCompareSwap, Flags: flags, CompareAdd: compare, Swap: swap}, old)
}

// PostInvalidate invalidates one of this side's keys: that of a memory window, see
// [Conn.PostBind], or on iWARP that of a region, which can then only be closed. Use
// [verbs.SendFence] if earlier READs may still be filling the region.
func (c *Conn) PostInvalidate(id uint64, flags verbs.SendFlags, key uint32) error {
	return c.Post(verbs.SendWR{ID: id, Opcode: verbs.OpLocalInv, Flags: flags, InvalidateRKey: key})
}
