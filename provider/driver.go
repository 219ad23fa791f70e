package provider

import (
	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// UHW is a driver's private part of a verb: what it tells its kernel side and
// where the kernel side answers.
type UHW struct{ In, Out []byte }

// Device is an open device as far as a driver needs it.
type Device struct {
	FD         int    // of /dev/infiniband/uverbsN, for mmap and doorbells; uverbs closes it
	Driver     uint32 // enum rdma_driver_id
	MaxMessage uint32 // bytes, of its ports
	MTU        uint32 // bytes, of its ports: the longest datagram
	Caps       uint64 // enum ib_uverbs_device_cap_flags
}

// Driver makes the data path of one kernel driver's objects. The kernel's
// objects are made by the create function it is given, which runs the verb
// with the driver's part and says what came of it. If the driver fails after
// create succeeded, its caller destroys the kernel's object.
type Driver interface {
	Name() string
	// ID is the kernel's enum rdma_driver_id.
	ID() uint32
	GetContext(get func(UHW) error) error
	// CreateCQ makes a CQ. The driver calls wake when it adds a completion
	// itself, of which the kernel knows nothing, to a CQ that is armed.
	CreateCQ(dev Device, wake func(), create func(UHW) (handle uint32, err error)) (CompletionQueue, error)
	CreateQP(dev Device, init QPInit, create func(UHW) (QPInfo, error)) (SendQueue, RecvQueue, error)
	CreateSRQ(dev Device, create func(UHW) (SRQInfo, error)) (RecvQueue, error)
	// CreateAH makes an address handle and returns its number for [verbs.UDAddr].
	CreateAH(create func(UHW) error) (num uint32, err error)
	RegisterMR(req *abi.IbUverbsRegMr, register func(UHW) error) error
}

// QPInit is what a driver needs to know before a QP is made.
type QPInit struct {
	Type           verbs.QPType
	Cap            *verbs.QPCap // what create will ask for, which the driver may raise
	SignalAll      bool
	SharedRecv     bool // receives come from an SRQ: no receive queue
	SendCQ, RecvCQ CompletionQueue
}

// SRQInfo is the SRQ that the kernel made.
type SRQInfo struct {
	Num    uint32
	MaxSGE uint32
}

// QPInfo is what the kernel made.
type QPInfo struct {
	Handle uint32
	QPNum  uint32
	Cap    verbs.QPCap
}

// Queue is what all queues have in common. All their methods are safe for
// concurrent use; none but Arm, and the doorbell inside SendQueue.Post, makes a
// system call, and none allocates unless it fails.
type Queue interface {
	// Stop waits for calls in progress, and makes others return sys.ErrClosed,
	// or no completions, until Stop(false): the kernel refuses to destroy an
	// object that a call is using.
	Stop(bool)
	// Release ends the queue, for good, and returns its memory for the caller to
	// unmap, if there is any.
	Release() *mmap.Region
}

// SendQueue is the send queue of a QP.
type SendQueue interface {
	// Post posts wrs in order and rings one doorbell. It returns how many
	// were posted: those complete, the others the kernel never sees. The error
	// says why they are not all; it is nil if they are. If the doorbell fails,
	// what the kernel may have seen counts as posted, and the QP is moved to the
	// error state, where it completes. If that fails as well, all later uses
	// return [verbs.ErrQueueFailed].
	Post(wrs []verbs.SendWR) (int, error)
	// Cap is the number of requests it can hold.
	Cap() int
	Stateful
	Queue
}

// Stateful queues know which state their QP is in.
type Stateful interface {
	// Suspend keeps everybody from posting until Settle, which says whether the QP
	// has been moved to state s.
	Suspend()
	Settle(s verbs.QPState, moved bool)
}

// RecvQueue is the receive queue of a QP, or an SRQ.
type RecvQueue interface {
	// Post posts wrs in order. What it returns is as for [SendQueue].
	Post(wrs []verbs.RecvWR) (int, error)
	Cap() int
	// SetLimit runs the verb that arms the limit of an SRQ with the driver's part.
	SetLimit(set func(UHW) error) error
	Stateful
	Resizer
	Queue
}

// Resizer is a queue that may be able to change its size, with what is in it.
type Resizer interface {
	// Resize runs the verb that does so with the driver's part. If the verb
	// succeeds and the new queue cannot be mapped, this and all later uses
	// return [verbs.ErrQueueFailed].
	Resize(resize func(UHW) error) error
}

// CompletionQueue is a CQ.
type CompletionQueue interface {
	// Poll moves up to len(wcs) completions into wcs and returns how many.
	Poll(wcs []verbs.WC) int
	// Arm asks for an event at the next completion, or at the next solicited
	// or failed one. Completions that are already there cause none.
	Arm(solicitedOnly bool) error
	// Cap is the number of completions it can hold.
	Cap() int
	// Recycle closes the queue, and returns one in its place that is empty. No
	// QP uses it any more, and nobody will want events of it.
	Recycle() CompletionQueue
	Resizer
	Queue
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
