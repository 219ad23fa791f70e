package rconn

import (
	"fmt"

	"github.com/goverbs/verbs"
)

// Op is a request for [Conn.Post]. [Send], [Write], [Read] and the functions beside them make the
// common ones, with any number of spans up to Options.Cap.MaxSendSGE. They are not signaled unless
// [Op.With] says so: [Conn.Await] does not see them complete. Others are literals:
//
//	rconn.Op{SendWR: verbs.SendWR{Opcode: verbs.OpAtomicWrite, Inline: word}, At: region.At(8)}
type Op struct {
	// SendWR has the ID, which the completion returns, the flags, and everything that has no field
	// here. The Conn checks neither its SGL, nor RemoteAddr and RKey, which replace At: a mistake
	// there, or memory that is released too early, breaks the connection.
	verbs.SendWR
	// At is the peer's memory, for a WRITE, a READ, an atomic operation or a flush. Its
	// bounds, rights and alignment are checked.
	At Target
	// Spans is the local memory. It is checked, and its regions cannot be closed until the
	// request has completed.
	Spans []Span

	window *Window      // to bind to the span
	access verbs.Access // of the window
	advert bool         // send an advertisement of the span, with the tag in Imm
}

// With returns the request with an ID and flags, such as [verbs.SendSignaled].
func (o Op) With(id uint64, flags verbs.SendFlags) Op {
	o.ID, o.Flags = id, flags
	return o
}

// Send sends the spans as one message, for which the peer must have posted a receive.
func Send(spans ...Span) Op { return Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend}, Spans: spans} }

// SendInline is a [Send] of a copy of b, which needs no region and may be reused at once.
// Options.Cap.MaxInline bounds its length.
func SendInline(b []byte) Op { return Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend, Inline: b}} }

// SendImm is a [Send] with an immediate, see [verbs.WC.Imm]. iWARP has none.
func SendImm(imm uint32, spans ...Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpSendImm, Imm: imm}, Spans: spans}
}

// SendInv is a [Send] that invalidates one of the peer's keys when the message arrives, as
// [Invalidate] does. On RoCE the peer's completion has [verbs.WCWithInv] in its Flags, and its
// InvalidatedRKey method returns the key. A key that cannot be invalidated breaks the connection.
func SendInv(key uint32, spans ...Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpSendInv, RKey: key}, Spans: spans}
}

// Advert advertises a part of a region to the peer, which must have posted a receive for it:
// by [Options].Adverts or [Conn.PostRecvAdvert]. The peer can distinguish regions by tag.
func Advert(tag uint32, part Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpSend, Imm: tag}, Spans: []Span{part}, advert: true}
}

// Write writes the spans to consecutive bytes of the peer's memory. See [Conn.AwaitDelivery]
// for what its completion means.
func Write(to Target, spans ...Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMAWrite}, At: to, Spans: spans}
}

// WriteInline is a [Write] of a copy of b, as [SendInline].
func WriteInline(to Target, b []byte) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMAWrite, Inline: b}, At: to}
}

// WriteImm is a [Write] with an immediate, which consumes one of the peer's receives, without
// its spans: when the bytes are in the peer's memory, it completes with their number in ByteLen
// and the opcode [verbs.WCRecvRDMAImm].
func WriteImm(imm uint32, to Target, spans ...Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: imm}, At: to, Spans: spans}
}

// Read fills the spans from the peer's memory. On iWARP, whose READ has one destination, it
// takes a request for each span.
func Read(from Target, spans ...Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpRDMARead}, At: from, Spans: spans}
}

// FetchAdd adds to 8 bytes of the peer's memory, see [Counter], and stores their previous value
// in old, which has 8 bytes.
func FetchAdd(at Target, add uint64, old Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: add}}, At: at, Spans: []Span{old}}
}

// CompareSwap is as [FetchAdd], and sets the bytes to swap if they equal compare.
func CompareSwap(at Target, compare, swap uint64, old Span) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: compare, Swap: swap}}, At: at, Spans: []Span{old}}
}

// Invalidate invalidates one of this side's keys: of a memory window, see [Bind], or on iWARP of a
// region, which can then only be closed. Use [verbs.SendFence] if earlier READs may still be
// filling the region.
func Invalidate(key uint32) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpLocalInv, RKey: key}}
}

// Bind binds a window to a part of a region made with [verbs.AccessMWBind], for the peer to use
// with this access: [RemoteWrite], [RemoteRead] and [RemoteAtomic], or several of them. Those that
// write need a region with [LocalWrite]. Then [Window.Region] returns the part with its new key,
// which must be sent to the peer, for instance as the result of its AppendAdvert. Requests posted
// later, such as that message, are executed after the binding. A window that is bound must be
// invalidated, by [Invalidate] or the peer's [SendInv], before it is bound again.
func Bind(w *Window, part Span, access verbs.Access) Op {
	return Op{SendWR: verbs.SendWR{Opcode: verbs.OpBindMW}, Spans: []Span{part}, window: w, access: access}
}

var noArgs verbs.SendArgs

// args returns Args, or empty ones, which nobody may change.
func (o *Op) args() *verbs.SendArgs {
	if o.Args == nil {
		return &noArgs
	}
	return o.Args
}

// requiredAccess returns the access to its spans and to the peer's memory that a request needs.
func (o *Op) requiredAccess() (local, remote verbs.Access) {
	switch o.Opcode {
	case verbs.OpRDMAWrite, verbs.OpRDMAWriteImm, verbs.OpAtomicWrite:
		return 0, verbs.AccessRemoteWrite
	case verbs.OpRDMARead, verbs.OpRDMAReadInv:
		return verbs.AccessLocalWrite, verbs.AccessRemoteRead
	case verbs.OpCompareSwap, verbs.OpFetchAdd:
		return verbs.AccessLocalWrite, verbs.AccessRemoteAtomic
	case verbs.OpBindMW:
		return verbs.AccessMWBind, 0
	case verbs.OpFlush:
		if o.args().Flush.Type&verbs.FlushGlobal != 0 {
			remote |= verbs.AccessFlushGlobal
		}
		if o.args().Flush.Type&verbs.FlushPersistent != 0 {
			remote |= verbs.AccessFlushPersistent
		}
	}
	return 0, remote
}

// checkTarget checks At of a request that has n bytes of local memory and needs that access.
func (o *Op) checkTarget(n int, need verbs.Access) error {
	align := uint64(1)
	switch o.Opcode {
	case verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpAtomicWrite:
		align = 8
	case verbs.OpFlush:
		n = int(o.args().Flush.Length)
	}
	if need == 0 {
		return fmt.Errorf("%v has no target: %w", o.Opcode, verbs.ErrRange)
	}
	if o.At.addr()%align != 0 {
		return fmt.Errorf("%v at %#x: %w: it must be aligned to %d bytes", o.Opcode, o.At.addr(), verbs.ErrRange, align)
	}
	return o.At.check(n, need)
}
