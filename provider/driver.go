package provider

import (
	"time"

	"github.com/goverbs/verbs"
)

// Driver drives the devices of one kernel driver. Its methods, and those of the values it returns,
// are safe for concurrent use unless their documentation says otherwise.
type Driver interface {
	// Name returns the driver's name, "mlx5": the Driver method of a uverbs.Context returns it.
	Name() string
	// ID returns the kernel's enum rdma_driver_id of the devices that the driver
	// drives, such as abi.RDMA_DRIVER_MLX5.
	ID() uint32
	// GetContext makes the driver's part of a newly opened device. It calls get once,
	// which runs the verb GET_CONTEXT with the driver's part and then completes dev.
	// After that the driver may map pages of dev.FD and allocate what it needs. If it
	// fails, it releases all of that itself; uverbs closes the file.
	GetContext(dev *Device, get func(UHW) error) (Context, error)
	// ImportContext makes the driver's part of a device file for which another Context
	// exists, in this process or another. dev is complete. The driver may call query,
	// which runs the verb QUERY_CONTEXT with the driver's part. Kernel drivers without
	// that verb, such as rxe and siw, refuse it with EOPNOTSUPP.
	ImportContext(dev *Device, query func(UHW) error) (Context, error)
}

// UHW is a driver's private part of a verb: In is passed to the driver's kernel side, which fills
// Out. Their layouts are the structures of the kernel's include/uapi/rdma/NAME-abi.h without the
// fields of the core, in the host's byte order. An empty part is not passed. Kernel drivers differ
// in what they do with parts that are shorter or longer than they expect; pass exact lengths.
//
// uverbs copies both ways: the memory may be anywhere, also on the stack, and is not
// used after the verb has returned.
type UHW struct {
	In, Out []byte
	// OutAttr is the attribute that Out comes in, for QUERY_CONTEXT alone: 0 is
	// UVERBS_ATTR_UHW_OUT, and mlx5 has one of its own.
	OutAttr uint16
	// Pins is how many bytes of the process's memory the kernel is to pin for a queue. They
	// count as locked memory, and the error says so if the limit leaves less. 0 means that the
	// kernel allocates the queue.
	Pins int
}

// Device describes an open device to its driver. Only uverbs changes it, before the first
// Context method is called.
type Device struct {
	FD     int    // of /dev/infiniband/uverbsN, for mmap.Map and doorbells; uverbs closes it after Context.Release
	Driver uint32 // enum rdma_driver_id

	CoreSupport uint64           // UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT (enum ib_uverbs_core_support); 0 if imported and not queried
	Attr        verbs.DeviceAttr // limits and capabilities
	Port        verbs.PortAttr   // of port 1: ports of a device do not differ in what a driver needs

	// IWARP reports that the kernel's iWARP connection manager moves QPs to RTS, of which Settle does
	// not hear: the driver posts in any state but ERR.
	IWARP bool
}

// Object is the driver's part of an object that has no queue: of a PD, AH or MR. A
// driver that has none returns nil.
type Object interface {
	// Release is called once, after the kernel's object has been destroyed and after
	// Release of everything that was made from it. It frees the driver's memory.
	Release()
}

// Context is the driver's part of one open device. Its methods make the driver's part of objects.
// Each is passed a function that runs the verb with the driver's part, to be called at most once,
// and before the method returns. The parameters that the function passes to the kernel are those in
// init, which the driver may raise first. If the method fails after the function has succeeded,
// uverbs destroys the kernel's object; the driver must have released its own part by then.
//
// Release is called after that of all other objects of the Context, and before the
// device file is closed. There the driver unmaps device pages.
type Context interface {
	// AllocPD makes a protection domain.
	AllocPD(alloc func(UHW) error) (Object, error)
	// CreateCQ makes a completion queue.
	CreateCQ(init *CQInit, create func(UHW) (CQInfo, error)) (CompletionQueue, error)
	// CreateSRQ makes a shared receive queue.
	CreateSRQ(init *SRQInit, create func(UHW) (SRQInfo, error)) (RecvQueue, error)
	// CreateQP makes a queue pair in state RESET. The RecvQueue is nil if init has an SRQ.
	CreateQP(init *QPInit, create func(UHW) (QPInfo, error)) (SendQueue, RecvQueue, error)
	// CreateAH makes an address handle and returns the number by which requests name it: the AH of
	// [verbs.UDAddr]. A driver whose kernel side has no address handles does not call create.
	CreateAH(init *AHInit, create func(UHW) error) (num uint32, ah Object, err error)
	// RegisterMR makes a memory region of this process's memory. init must not be
	// changed. Regions of DMA-BUF files, and memory windows, have no driver's part.
	RegisterMR(init *MRInit, register func(UHW) error) (Object, error)
	Object
}

// InlineLimiter is implemented by a Context whose send queues limit inline data: a
// [verbs.DeviceAttr] has no such limit, and errors name it.
type InlineLimiter interface {
	MaxInline() int // bytes; 0 if they take none
}

// SGELimiter is implemented by a Context whose send requests may have more SGEs than receives, or
// fewer: a [verbs.DeviceAttr] has one limit, the smaller.
type SGELimiter interface {
	MaxSGE() (send, recv int)
}

// CQInit describes a CQ that is to be made.
type CQInit struct {
	Depth int // minimum number of completions
	// Wake wakes a waiter of the CQ as a completion event does. The driver calls it when
	// it adds a completion by itself, which the kernel does not know about, to a CQ
	// that is armed. It does nothing if the CQ has no channel. It may be called until
	// the queue has been released, and without locks that Poll or Arm takes.
	Wake func()
	// SingleThreaded reports that calls of the queue never overlap, so that the driver
	// needs no lock for them. Calls of QPs that use the CQ may overlap them.
	SingleThreaded bool
	// Timestamps makes Take set the Timestamp of completions. uverbs tells the kernel, and sets
	// it only for a Context that is a [Clock].
	Timestamps verbs.TimestampFormat
}

// Clock is implemented by a Context whose device has a clock that can be read, and completions that
// have its time.
type Clock interface {
	// ReadClock returns the device's clock, in its cycles.
	ReadClock() (uint64, error)
}

// CQInfo describes the CQ that the kernel made.
type CQInfo struct {
	Handle uint32 // for the commands of this package
	Depth  int
}

// SRQInit describes an SRQ that is to be made.
type SRQInit struct {
	PD     Object // of the driver; nil if it has none, and for imported PDs
	MaxWR  int    // minimum number of requests
	MaxSGE int    // minimum number of SGEs of a request
}

// SRQInfo describes the SRQ that the kernel made.
type SRQInfo struct {
	Handle uint32
	MaxWR  int
	MaxSGE int
}

// QPInit describes a QP that is to be made.
type QPInit struct {
	Type           verbs.QPType
	Cap            verbs.QPCap // minimum size of the queues
	SignalAll      bool        // every send request is signaled
	SingleThreaded bool        // the calls of both queues never overlap: the driver needs no lock for them
	PD             Object      // of the driver; nil if it has none, and for imported PDs
	SendCQ, RecvCQ CompletionQueue
	SRQ            RecvQueue // that the QP uses; nil if it has a receive queue of its own
	DCKey          uint64    // of a DCT, or of the targets of a DCI; 0 for other types
}

// QPInfo describes the QP that the kernel made.
type QPInfo struct {
	Handle uint32 // for the commands of this package
	QPNum  uint32
	Cap    verbs.QPCap // as the kernel returned it: some kernel drivers return the request
}

// AHInit describes an address handle that is to be made.
type AHInit struct {
	PD Object // of the driver; nil if it has none, and for imported PDs
	AV verbs.AddressVector
}

// MRInit describes a memory region that is to be made.
type MRInit struct {
	PD            Object // of the driver; nil if it has none, and for imported PDs
	Start, Length uint64 // the memory
	IOVA          uint64 // address of the first byte for SGEs and peers
	Access        verbs.Access
}

// Queue has the methods that all queues have in common. They are safe for concurrent use.
// None makes a system call, except for the doorbell of [SendQueue], arming a CQ, the
// functions that are passed to methods, and what the queue of a failed QP takes to flush or to learn
// its state. Post and Take do not allocate unless they fail or the QP has.
// [Gate] implements Stop, Suspend, Settle and Modify; [Requests] implements SetLimit and Resize for
// drivers without them.
type Queue interface {
	// Stop(true) is called before the kernel's object is destroyed: it waits for calls in
	// progress. Later calls return [verbs.ErrClosed], or no completions. Stop(false) is
	// called if the kernel refused to destroy the object, and undoes it.
	Stop(stop bool)
	// Release is called once, after the kernel's object has been destroyed. It ends the
	// queue and frees its memory. Post, Poll, Arm, Resize and Cap may be called after it:
	// they behave as after Stop(true) and do not access the memory. The send queue of a
	// QP is released before its receive queue, and both before the CQs and the SRQ.
	Release()
}

// SendQueue is the send queue of a QP.
type SendQueue interface {
	// Post posts wrs in order and rings one doorbell. It returns how many were posted:
	// these will complete, and the device never sees the others. The error is nil if all
	// were posted, [verbs.ErrQueueFull] itself if there was no room, and otherwise a
	// [*verbs.PostError] for the first that was not posted, or the error of a closed
	// queue. If the doorbell fails, requests that the device may have seen count as
	// posted, and the driver moves the QP to the error state, where they complete. If
	// that fails as well, all later calls return [verbs.ErrQueueFailed].
	//
	// The driver must not keep wrs, or anything it points to, but in variables of functions,
	// also not while Post runs: all of it may be on the caller's stack. Of a driver that obeys,
	// go build -gcflags=-m says "wrs does not escape".
	Post(wrs []verbs.SendWR) (int, error)
	// Cap returns the number of requests that the queue holds.
	Cap() int
	// Modify runs the verb that modifies the QP, with the driver's part, and perhaps again. It
	// is called between Suspend and Settle if mask has [verbs.MaskState].
	Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, modify func(UHW) error) error
	Stateful
	Queue
}

// Numberer is implemented by send queues of QPs that get their number when they are modified, as
// a DCT does, which the device makes on the way to RTR.
type Numberer interface {
	// QPNum returns the number, or 0 if the QP has none yet, or has had it from the beginning.
	// It is called after Modify.
	QPNum() uint32
}

// Extended is implemented by send queues of QPs that may have extensions of their vendor.
type Extended interface {
	// ECE returns what the QP offers to its peer or, once Modify has moved it to RTR with the peer's
	// [verbs.QPAttr.ECE], what both have.
	ECE() verbs.ECE
}

// Stateful queues know the state of their QP. The state of an SRQ never changes.
type Stateful interface {
	// Suspend prevents posting until Settle.
	Suspend()
	// Settle ends Suspend. moved reports whether the QP has been moved to state s. A QP
	// that is moved to RESET discards its requests: the driver empties the queue. A QP
	// may also enter the error state without Settle, when the device detects an error.
	Settle(s verbs.QPState, moved bool)
}

// RecvQueue is the receive queue of a QP, or an SRQ.
type RecvQueue interface {
	// Post posts wrs in order. Its results, and what it must not retain, are as for [SendQueue].
	Post(wrs []verbs.RecvWR) (int, error)
	// Cap returns the number of requests that the queue holds.
	Cap() int
	// SetLimit runs the verb that arms the limit of an SRQ, with the driver's part.
	SetLimit(limit int, set func(UHW) error) error
	Resizer // of SRQs only
	Stateful
	Queue
}

// Resizer is implemented by queues that may be able to change their size and preserve
// their entries. Queues that are not able to do so let the kernel refuse.
type Resizer interface {
	// Resize runs the verb that resizes the queue, with the size that the driver chooses,
	// not less than size, and with the driver's part. If the verb succeeds and the driver
	// cannot use the new queue, this and all later calls return [verbs.ErrQueueFailed].
	Resize(size int, resize func(size int, uhw UHW) error) error
}

// CompletionQueue is a CQ.
type CompletionQueue interface {
	// Common returns the part that all drivers have in common: CQs embed [Completions].
	Common() *Completions
	// Take moves up to len(wcs) completions into wcs, returns how many, and unlocks the queue,
	// which the caller has locked and is not closed. The driver must not keep wcs, as in
	// [SendQueue]. Completions of a QP that has been destroyed may be dropped or returned.
	Take(wcs []verbs.WC) int
	// Arm requests an event at the next completion, or at the next solicited or failed
	// one. Completions that are already there cause none.
	Arm(solicitedOnly bool) error
	// Cap returns the number of completions that the queue holds.
	Cap() int
	// Recycle closes the queue and returns an empty one for the same kernel CQ, which no QP uses. A
	// request for an event may be left. Recycle is called instead of Release.
	Recycle() CompletionQueue
	Resizer
	Queue
}

// EventCounter is implemented by completion queues that number their requests for
// events, as mlx5 does in the arm_sn of its doorbell record.
type EventCounter interface {
	// CountEvent is called for every completion event of the CQ that was read, before it
	// wakes a waiter. It must not block, nor call Wake.
	CountEvent()
}

// Flusher is implemented by send and receive queues that know which of their requests have not
// completed. No request completes any more on a device that has been lost: it was unplugged, or
// its firmware has died. uverbs then polls the CQs until they are empty, calls Flush of the
// queues, and [Completions.Detach] of the CQs with what it has got from both.
type Flusher interface {
	// Flush makes Post fail with [verbs.ErrDeviceRemoved], and returns a completion with
	// [verbs.WCFlushErr] for each request that has been posted and has not completed, in the order
	// of posting. An SRQ may have another order, and leaves QPNum to uverbs. It returns none after
	// Stop(true), nor what another call has returned, nor of a queue that is SingleThreaded.
	Flush() []verbs.WC
}

// Holder is implemented by send queues of devices on which the accepting side of a
// connection must not send first, as on siw.
type Holder interface {
	// Hold makes the first Post wait for a message from the peer, at most until t.
	Hold(t time.Time)
}
