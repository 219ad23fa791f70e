package verbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
)

// Errors of objects and devices.
var (
	// ErrClosed is returned when a method is called on a closed object, and by Close of a nil
	// pointer. It matches net.ErrClosed and fs.ErrClosed.
	ErrClosed error = closedError{}
	// ErrInUse is returned by Close while other objects depend on the receiver.
	ErrInUse = errors.New("object is in use")
	// ErrNoRDMA matches every error that means that RDMA cannot be used here or
	// to the requested address: there is no device, device node, kernel module or
	// driver, or no device leads to the address, as with 127.0.0.1. Programs that can
	// use TCP instead test for it. Missing permissions do not match.
	ErrNoRDMA = errors.New("RDMA is not available")
	// ErrNoDevice is returned when there is no RDMA device, or none matches the request.
	// It matches ErrNoRDMA.
	ErrNoDevice error = noRDMA("no such RDMA device")
	// ErrAmbiguous is returned when several devices match the request.
	ErrAmbiguous = errors.New("several RDMA devices match")
	// ErrNoNode is returned when a device has no /dev/infiniband/uverbsN, as in
	// containers to which it is not passed. It matches ErrNoRDMA.
	ErrNoNode error = noRDMA("RDMA device has no device node")
	// ErrNoDriver is returned when no registered driver supports a device. It matches
	// ErrNoRDMA and errors.ErrUnsupported.
	ErrNoDriver error = noDriver{noRDMA("no driver package for the device")}
	// ErrNoCM is returned when the connection manager's node, /dev/infiniband/rdma_cm,
	// is missing. It matches ErrNoRDMA.
	ErrNoCM error = noRDMA("RDMA connection manager has no device node")
	// ErrNoRoute is returned for an address to which no RDMA device leads, such as
	// 127.0.0.1 unless a device serves it. It matches ErrNoRDMA.
	ErrNoRoute error = noRDMA("no RDMA device on route")
	// ErrRange is returned when an argument is outside an object's bounds.
	ErrRange = errors.New("out of range")
	// ErrNoChannel is returned when waiting on a CQ that has no completion channel.
	ErrNoChannel = errors.New("CQ has no completion channel")
	// ErrSRQ is returned when a receive is posted to a QP that uses an SRQ.
	ErrSRQ = errors.New("QP receives from an SRQ: post there")
	// ErrDisconnected is the reason reported when the peer ended the connection.
	ErrDisconnected = errors.New("peer disconnected")
	// ErrDeviceRemoved is the reason reported for everything on a device that was
	// removed. Some drivers wait until all programs have closed their objects on the
	// device. With the others (mlx5, and rxe since Linux 7.3), waits, calls and posts
	// fail with this error, and posted requests complete with WCFlushErr; see package uverbs.
	ErrDeviceRemoved = errors.New("RDMA device was removed")
	// ErrNoGRH is returned when a datagram has no usable global route header.
	ErrNoGRH = errors.New("cannot reply: the datagram has no usable GRH")
)

// Errors of work requests that are refused before they reach a queue. They are wrapped in
// a [*PostError]. Only ErrQueueFull, which is back-pressure, is returned as it is: poll, then
// post again. With ErrNoSendRoom and ErrNoRecvRoom polling never makes room.
var (
	ErrQueueFull      = errors.New("queue is full")
	ErrNoSendRoom     = errors.New("the QP was created with MaxSendWR 0")
	ErrNoRecvRoom     = errors.New("the QP was created with MaxRecvWR 0")
	ErrTooManySGEs    = errors.New("more SGEs than the queue takes")
	ErrInlineTooLong  = errors.New("more inline data than the queue takes")
	ErrInlineSGL      = errors.New("the work request has inline data and an SGL")
	ErrInlineOp       = errors.New("operation takes no inline data")
	ErrMessageTooLong = errors.New("message is longer than the port carries")
	ErrBind           = errors.New("BIND_MW request has no Bind parameters")
	ErrAtomicWrite    = errors.New("ATOMIC_WRITE takes 8 bytes of inline data")
	ErrAtomicSGL      = errors.New("an atomic operation needs one SGE, of 8 bytes")
	ErrNoOpcode       = errors.New("work request has no opcode: set Opcode")
	ErrOpcode         = fmt.Errorf("opcode: %w", errors.ErrUnsupported)
	ErrState          = errors.New("the QP's state does not allow this work request")
)

// ErrQueueFailed is returned by every use of a queue that the kernel no longer serves, and by waits
// for a CQ that has lost completions as it was full. The reason follows in the text. Close the QP,
// SRQ or CQ.
var ErrQueueFailed = errors.New("queue has failed")

type closedError struct{}

func (closedError) Error() string        { return "use of closed object" }
func (closedError) Is(target error) bool { return target == net.ErrClosed || target == fs.ErrClosed }

// noRDMA is an error that matches ErrNoRDMA.
type noRDMA string

func (e noRDMA) Error() string        { return string(e) }
func (e noRDMA) Is(target error) bool { return target == ErrNoRDMA }

// noDriver is the error of a device for which there is no driver.
type noDriver struct{ noRDMA }

func (e noDriver) Is(target error) bool {
	return e.noRDMA.Is(target) || target == errors.ErrUnsupported
}

// Error describes a failed operation: what was attempted, on which object, and why it
// failed. Its text is one line.
type Error struct {
	Op     string // a verb: "create", "dial"
	Object string // "QP 17", "CQ in PD 3", "10.9.0.1:7471"; may be empty
	Device string // "rxe0"; empty if none is involved
	Err    error  // the reason, often a syscall.Errno
	Hint   string // what to do about it; may be empty
}

func (e *Error) Error() string {
	text := e.Op
	if e.Object != "" {
		text += " " + e.Object
	}
	if e.Device != "" {
		text += " on " + e.Device
	}
	text += ": " + e.Err.Error()
	if e.Hint != "" {
		text += " (" + e.Hint + ")"
	}
	return text
}

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// PostError describes a work request that was refused. The requests before it in the
// batch were posted.
type PostError struct {
	Op    string // "post send", "post recv", or "post SRQ recv"
	QPNum uint32 // or the SRQ's
	Index int    // in the batch
	ID    uint64 // of the work request
	Err   error  // the reason
}

func (e *PostError) Error() string {
	if e.Op == "post SRQ recv" {
		return fmt.Sprintf("post recv on SRQ %d: work request %d (ID %#x): %v", e.QPNum, e.Index, e.ID, e.Err)
	}
	return fmt.Sprintf("%s on QP %d: work request %d (ID %#x): %v", e.Op, e.QPNum, e.Index, e.ID, e.Err)
}

// Unwrap returns the reason.
func (e *PostError) Unwrap() error { return e.Err }
