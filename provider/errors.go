package provider

import (
	"errors"
	"fmt"
)

// Reasons for which a work request is refused before it reaches a queue. They
// arrive inside a [*PostError], except ErrQueueFull, which is no failure but
// back-pressure and arrives bare. ErrNoSendRoom and ErrNoRecvRoom match it.
var (
	ErrQueueFull      = errors.New("queue is full")
	ErrNoSendRoom     = fmt.Errorf("%w: it has no room for any: MaxSendWR is 0", ErrQueueFull)
	ErrNoRecvRoom     = fmt.Errorf("%w: it has no room for any: MaxRecvWR is 0", ErrQueueFull)
	ErrTooManySGEs    = errors.New("more SGEs than the queue takes")
	ErrInlineTooLong  = errors.New("more inline data than the queue takes")
	ErrInlineSGL      = errors.New("inline data together with an SGL")
	ErrInlineOp       = errors.New("operation takes no inline data")
	ErrMessageTooLong = errors.New("message is longer than the port carries")
	ErrBind           = errors.New("BIND_MW says not what to bind")
	ErrAtomicWrite    = errors.New("ATOMIC_WRITE takes 8 bytes of inline data")
	ErrAtomicSGL      = errors.New("atomic operations return exactly 8 bytes")
	ErrNoOpcode       = errors.New("work request has no opcode: set Opcode")
	ErrOpcode         = fmt.Errorf("opcode: %w", errors.ErrUnsupported)
	ErrState          = errors.New("QP is not in a state that takes this work request")
)

// ErrQueueFailed is returned by every use of a queue that the kernel no longer
// works on: what it says after that is why. Close the QP, SRQ or CQ.
var ErrQueueFailed = errors.New("queue has failed")

// RefuseOpcode returns the error of posting an opcode that a QP does not take.
func RefuseOpcode(o Opcode) error {
	if o == 0 {
		return ErrNoOpcode
	}
	return ErrOpcode
}

// PostError says which work request of a batch was refused. Those before it
// were posted.
type PostError struct {
	Op    string // "post send", "post recv", or OpPostSRQ
	QPNum uint32 // or the SRQ's
	Index int    // in the batch
	ID    uint64 // of the work request
	Err   error
}

// OpPostSRQ is PostError's Op for shared receive queues.
const OpPostSRQ = "post SRQ recv"

func (e *PostError) Error() string {
	if e.Op == OpPostSRQ {
		return fmt.Sprintf("post recv on SRQ %d: work request %d (ID %#x): %v", e.QPNum, e.Index, e.ID, e.Err)
	}
	return fmt.Sprintf("%s on QP %d: work request %d (ID %#x): %v", e.Op, e.QPNum, e.Index, e.ID, e.Err)
}

func (e *PostError) Unwrap() error { return e.Err }

// WCError is a failed work completion as an error; errors.Is finds its
// [WCStatus].
type WCError struct {
	ID        uint64
	QPNum     uint32
	Status    WCStatus
	VendorErr uint32
}

func (e *WCError) Error() string {
	return fmt.Sprintf("work request %#x on QP %d: %v (vendor error %#x)", e.ID, e.QPNum, e.Status.String(), e.VendorErr)
}

func (e *WCError) Unwrap() error { return e.Status }
