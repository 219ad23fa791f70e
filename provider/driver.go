package provider

import (
	"time"

	"github.com/goverbs/verbs"
)

// Driver drives the devices of one kernel driver. Its methods, and those of the
// values it returns, are safe for concurrent use unless their documentation says
// otherwise.
type Driver interface {
	// Name returns the driver's name, "mlx5": the Driver method of a uverbs.Context
	// returns it.
	Name() string
	// ID returns the kernel's enum rdma_driver_id of the devices that the driver
	// drives, such as abi.RDMA_DRIVER_MLX5.
	ID() uint32
	// GetContext begins the use of an open device. It calls get once, which runs the
	// verb GET_CONTEXT with the driver's part and then completes dev. After that the
	// driver may map pages of dev.FD and allocate what it needs. If it fails, it
	// releases all of that itself; uverbs closes the file.
	GetContext(dev *Device, get func(UHW) error) (Context, error)
	// ImportContext begins the use of a device file for which another Context exists,
	// in this process or another. dev is complete. The driver may call query, which
	// runs the verb QUERY_CONTEXT with the driver's part. Kernel drivers without that
	// verb, such as rxe and siw, refuse it with EOPNOTSUPP.
	ImportContext(dev *Device, query func(UHW) error) (Context, error)
}

// UHW is a driver's private part of a verb: In is what the driver passes to its kernel
// side, and the kernel side fills Out. Their layouts are the structures of the
// kernel's include/uapi/rdma/NAME-abi.h without the fields of the core, in the
// host's byte order. An empty part is not passed. Kernel drivers differ in what they
// do with parts that are shorter or longer than they expect; pass exact lengths.
//
// uverbs copies both ways: the memory may be anywhere, also on the stack, and is not
// used after the verb has returned.
type UHW struct{ In, Out []byte }

// Device is an open device as far as a driver needs it. Only uverbs changes it, before
// the first Context method is called.
type Device struct {
	FD     int    // of /dev/infiniband/uverbsN, for mmap.Map and doorbells; uverbs closes it after Context.Release
	Driver uint32 // enum rdma_driver_id

	CoreSupport uint64           // UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT (enum ib_uverbs_core_support); 0 if imported and not queried
	Attr        verbs.DeviceAttr // limits and capabilities
	Port        verbs.PortAttr   // of port 1: ports of a device do not differ in what a driver needs
}

// Object is the driver's part of an object that has no queue: of a PD, AH or MR. A
// driver that has none returns nil.
type Object interface {
	// Release is called once, after the kernel's object has been destroyed and after
	// Release of everything that was made from it. It frees the driver's memory.
	Release()
}

// Context is the driver's part of one open device. Its methods make the driver's part of
// objects. Each gets a function that runs the verb with the driver's part, to be called
// at most once, and before the method returns. The parameters that the function passes
// to the kernel are those in init, which the driver may raise first. If the
// method fails after the function has succeeded, uverbs destroys the kernel's object;
// the driver has released its own part then.
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
	// CreateQP makes a queue pair in state RESET. The RecvQueue is nil if init has an
	// SRQ.
	CreateQP(init *QPInit, create func(UHW) (QPInfo, error)) (SendQueue, RecvQueue, error)
	// CreateAH makes an address handle and returns the number by which requests name it:
	// the AH of [verbs.UDAddr]. A driver whose kernel side has no address handles does
	// not call create.
	CreateAH(init *AHInit, create func(UHW) error) (num uint32, ah Object, err error)
	// RegisterMR makes a memory region of this process's memory. init must not be
	// changed. Regions of DMA-BUF files, and memory windows, have no driver's part.
	RegisterMR(init *MRInit, register func(UHW) error) (Object, error)
	Object
}

// CQInit describes a CQ that is to be made.
type CQInit struct {
	Depth int // completions that it holds at least
	// Wake wakes a waiter of the CQ as a completion event does. The driver calls it when
	// it adds a completion by itself, which the kernel does not know about, to a CQ
	// that is armed. It does nothing if the CQ has no channel. It may be called until
	// the queue has been released, and without locks that Poll or Arm takes.
	Wake func()
	// SingleThreaded says that the calls of the queue never overlap, so that the driver
	// needs no lock for them; those of QPs that use the CQ may overlap them.
	SingleThreaded bool
}

// CQInfo describes the CQ that the kernel made.
type CQInfo struct {
	Handle uint32 // for the commands of this package
	Depth  int
}

// SRQInit describes an SRQ that is to be made.
type SRQInit struct {
	PD     Object // of the driver; nil if it has none, and for imported PDs
	MaxWR  int    // requests that it holds at least
	MaxSGE int    // of a request, at least
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
	Cap            verbs.QPCap // what its queues hold at least
	SignalAll      bool        // every send request is signaled
	SingleThreaded bool        // the calls of both queues never overlap: the driver needs no lock for them
	PD             Object      // of the driver; nil if it has none, and for imported PDs
	SendCQ, RecvCQ CompletionQueue
	SRQ            RecvQueue // whose receives the QP takes; nil if it has a queue of its own
}

// QPInfo describes the QP that the kernel made.
type QPInfo struct {
	Handle uint32 // for the commands of this package
	QPNum  uint32
	Cap    verbs.QPCap // as the kernel answered: some kernel drivers repeat the request
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
	IOVA          uint64 // by which SGEs and peers name its first byte
	Access        verbs.Access
}

// Queue is what all queues have in common. Their methods are safe for concurrent use.
// None makes a system call, except for the doorbell of [SendQueue], arming a CQ, and
// what is run by a function that the method is given. Post and Poll do not allocate
// unless they fail. [Gate] implements Stop, Suspend, Settle and Modify.
type Queue interface {
	// Stop(true) is called before the kernel's object is destroyed: it waits for calls
	// in progress. Later ones return [verbs.ErrClosed], or no completions. Stop(false)
	// is called if the kernel refused to destroy the object, and undoes it.
	Stop(stop bool)
	// Release is called once, after the kernel's object has been destroyed. It ends the
	// queue and frees its memory. Post, Poll, Arm, Resize and Cap may be called after
	// it: they behave as after Stop(true) and touch none of that. Of a QP the send queue
	// is released before the receive queue, and both before the CQs and the SRQ.
	Release()
}

// SendQueue is the send queue of a QP.
type SendQueue interface {
	// Post posts wrs in order and rings one doorbell. It returns how many were posted:
	// those complete, the device never sees the others. The error is nil if all were
	// posted, [verbs.ErrQueueFull] as it is if there was no room, and otherwise a
	// [*verbs.PostError] for the first that was not posted, or the error of a queue
	// that is closed. If the doorbell fails, what the device may have seen counts
	// as posted, and the driver moves the QP to the error state, where it
	// completes. If that fails as well, all later uses return [verbs.ErrQueueFailed].
	//
	// The driver must not keep wrs, nor what it points to, after it has returned. uverbs
	// passes copies whose InlineList is empty: their Inline has all inline data.
	Post(wrs []verbs.SendWR) (int, error)
	// Cap returns the number of requests that the queue holds.
	Cap() int
	// Modify runs the verb that modifies the QP, with the driver's part. It is
	// called between Suspend and Settle if mask has [verbs.MaskState].
	Modify(attr verbs.QPAttr, mask verbs.QPAttrMask, modify func(UHW) error) error
	Stateful
	Queue
}

// Stateful queues know the state of their QP. The state of an SRQ never changes.
type Stateful interface {
	// Suspend keeps others from posting until Settle.
	Suspend()
	// Settle ends Suspend. moved reports whether the QP has been moved to state s. A QP
	// that is moved to RESET forgets its requests: the driver empties the queue. A QP may
	// also enter the error state without that, when the device detects an error.
	Settle(s verbs.QPState, moved bool)
}

// RecvQueue is the receive queue of a QP, or an SRQ.
type RecvQueue interface {
	// Post posts wrs in order. Its results, and what it may not keep, are as for
	// [SendQueue].
	Post(wrs []verbs.RecvWR) (int, error)
	// Cap returns the number of requests that the queue holds.
	Cap() int
	// SetLimit runs the verb that arms the limit of an SRQ, with the driver's part.
	SetLimit(limit int, set func(UHW) error) error
	Resizer // of SRQs only
	Stateful
	Queue
}

// Resizer is a queue that may be able to change its size and to keep what is in it. Those
// that are not let the kernel refuse.
type Resizer interface {
	// Resize runs the verb that resizes the queue, with the size that the driver chooses,
	// not less than size, and with the driver's part. If the verb succeeds and the driver
	// cannot use the new queue, this and all later uses return [verbs.ErrQueueFailed].
	Resize(size int, resize func(size int, uhw UHW) error) error
}

// CompletionQueue is a CQ.
type CompletionQueue interface {
	// Poll moves up to len(wcs) completions into wcs and returns how many. The driver
	// must not keep wcs. Completions of a QP that has been destroyed may be dropped or
	// returned.
	Poll(wcs []verbs.WC) int
	// Arm requests an event at the next completion, or at the next solicited or failed
	// one. Completions that are already there cause none.
	Arm(solicitedOnly bool) error
	// Cap returns the number of completions that the queue holds.
	Cap() int
	// Recycle closes the queue and returns an empty one for the same CQ of the kernel. No
	// QP uses the CQ any more, and it has no channel. It is called instead of Release.
	Recycle() CompletionQueue
	Resizer
	Queue
}

// EventCounter is implemented by completion queues that number their requests for
// events, as mlx5 does in the arm_sn of its doorbell record.
type EventCounter interface {
	// CountEvent is called for every completion event of the CQ that was read, before
	// a waiter is woken by it. It must not block, nor call Wake.
	CountEvent()
}

// Holder is implemented by send queues of devices on which the accepting side of a
// connection must not send first, as on siw.
type Holder interface {
	// Hold makes the first Post wait for a message from the peer, at most until t.
	Hold(t time.Time)
}

// SendInline is the flag of requests with inline data, in which drivers keep it
// (enum ib_send_flags).
const SendInline verbs.SendFlags = 1 << 3

// RefuseOpcode returns the error of posting an opcode that a QP does not take.
func RefuseOpcode(o verbs.Opcode) error {
	if o == 0 {
		return verbs.ErrNoOpcode
	}
	return verbs.ErrOpcode
}
