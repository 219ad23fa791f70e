package provider

// UHW is a driver's private part of a verb: what it tells its kernel side and
// where the kernel side answers.
type UHW struct{ In, Out []byte }

// Device is an open device as far as a driver needs it.
type Device struct {
	FD         int    // of /dev/infiniband/uverbsN, for mmap and doorbells; uverbs closes it
	MaxMessage uint32 // bytes, of its ports
}

// Driver makes the data path of one kernel driver's objects. The kernel's
// objects are made by the create function it is given, which runs the verb
// with the driver's part and says what came of it. If the driver fails after
// create succeeded, its caller destroys the kernel's object.
type Driver interface {
	Name() string
	// ID is the kernel's enum rdma_driver_id.
	ID() uint32
	CreateCQ(dev Device, create func(UHW) (handle uint32, err error)) (CompletionQueue, error)
	CreateQP(dev Device, init QPInit, create func(UHW) (QPInfo, error)) (SendQueue, RecvQueue, error)
}

// QPCap is the size of a QP's queues: as asked for, or as made.
type QPCap struct {
	MaxSendWR, MaxRecvWR   uint32
	MaxSendSGE, MaxRecvSGE uint32
	MaxInline              uint32 // bytes
}

// QPInit is what a driver needs to know before a QP is made.
type QPInit struct {
	SharedRecv bool // receives come from an SRQ: no receive queue
}

// QPInfo is what the kernel made.
type QPInfo struct {
	Handle uint32
	QPNum  uint32
	Cap    QPCap
}

// QPState as the kernel numbers it (enum ib_qp_state).
type QPState uint32

const (
	StateReset QPState = iota
	StateInit
	StateRTR
	StateRTS
	StateSQD
	StateSQE
	StateErr
)

func (s QPState) String() string {
	names := [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}
	if int(s) < len(names) {
		return names[s]
	}
	return "unknown"
}

// Queue is what all queues have in common. All their methods are safe for
// concurrent use; none but Arm, and the doorbell inside SendQueue.Post, makes a
// system call, and none allocates unless it fails.
type Queue interface {
	// Stop waits for calls in progress, and makes others return sys.ErrClosed,
	// or no completions, until Stop(false): the kernel refuses to destroy an
	// object that a call is using.
	Stop(bool)
	// Close unmaps the queue, for good.
	Close() error
}

// SendQueue is the send queue of a QP.
type SendQueue interface {
	// Post posts wrs in order and rings one doorbell. It returns how many
	// were posted; if not all, the error says why.
	Post(wrs []SendWR) (int, error)
	// SetState tells the queue which state the QP is in.
	SetState(QPState)
	Queue
}

// RecvQueue is the receive queue of a QP.
type RecvQueue interface {
	Post(wrs []RecvWR) (int, error)
	SetState(QPState)
	Queue
}

// CompletionQueue is a CQ.
type CompletionQueue interface {
	// Poll moves up to len(wcs) completions into wcs and returns how many.
	Poll(wcs []WC) int
	// Arm asks for an event at the next completion, or at the next solicited
	// or failed one. Completions that are already there cause none.
	Arm(solicitedOnly bool) error
	// Cap is the number of completions it can hold.
	Cap() int
	Queue
}
