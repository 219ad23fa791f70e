package cm

import (
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrMPA is why a Dial fails on iWARP when the kernel cannot make sense of
	// the answer. Mostly the peer, which may not, sent its first message before
	// it had one, and that came with the answer: the next Dial may succeed. The
	// error matches EINVAL too.
	ErrMPA = errors.New("the peer broke MPA, or sent before it had a message")
	// ErrPrivateData is more private data than a message carries.
	ErrPrivateData = errors.New("private data is too long")
)

// MaxPrivateData is the most private data the kernel takes, in bytes. What the
// transport carries is less: on RoCE 56 in a connection request, 196 in its
// acceptance and 148 in its rejection (IBTA 12.6, less rdma_cm's header), for
// datagrams 180 and 136; the receiver gets the whole field, padded with zeros.
// iWARP carries all of it, at its exact length (MPA has room for 512 bytes,
// less 4).
const MaxPrivateData = 255

// What RoCE carries, in bytes.
const (
	roceRequest         = 56
	roceReply           = 196
	roceReject          = 148
	roceDatagramRequest = 180
	roceDatagramReply   = 136
)

// tooLong explains the kernel's EINVAL for private data that RoCE, unlike
// iWARP, does not carry.
func tooLong(err error, data []byte, most int) error {
	if errors.Is(err, unix.EINVAL) && len(data) > most {
		return fmt.Errorf("%w: %d bytes of at most %d: %w", ErrPrivateData, len(data), most, err)
	}
	return err
}

// RejectedError says that the peer, or its kernel, turned a connection down.
// It matches ECONNREFUSED.
type RejectedError struct {
	Reason      int // on RoCE an IBTA CM reject reason, on iWARP a negative errno, which matches too
	PrivateData []byte
}

// Reject reasons that are met in practice (IBTA table 106).
const (
	rejectInvalidServiceID = 8  // no listener
	rejectStaleConn        = 10 // a late packet of an older connection
	rejectConsumer         = 28 // the program said no
	rejectVendorOption     = 35 // the program does not take the extensions offered
)

func (e *RejectedError) Error() string {
	switch e.Reason {
	case rejectInvalidServiceID:
		return "connection refused: there is no listener at this port"
	case rejectConsumer:
		return "connection rejected by the peer"
	case rejectVendorOption:
		return "connection rejected by the peer: extensions are not supported"
	case rejectStaleConn:
		return "connection rejected as stale"
	}
	if e.Reason < 0 {
		return "connection rejected: " + unix.Errno(-e.Reason).Error()
	}
	return fmt.Sprintf("connection rejected, reason %d", e.Reason)
}

func (e *RejectedError) Is(target error) bool {
	return target == unix.ECONNREFUSED || e.Reason < 0 && target == unix.Errno(-e.Reason)
}

// SendError is wc.Err(), of a completion from a send queue. It matches
// [verbs.ErrDisconnected] as well if the status says that the peer is out of reach: it
// does not answer, or there is no way to it any more, the link being down or, on
// iWARP, TCP having ended. Completions with it may come before the event.
func SendError(wc *verbs.WC) error {
	if wc.Status == verbs.WCRetryExcErr || wc.Status == verbs.WCLocQPOpErr {
		return fmt.Errorf("%w: %w", verbs.ErrDisconnected, wc.Err())
	}
	return wc.Err()
}

// fail wraps err, which came of op on an address. It returns nil if err is nil.
func fail(op, addr string, err error) error {
	if err == nil {
		return nil
	}
	verb, object := sys.SplitOp(op, addr)
	e := &verbs.Error{Op: verb, Object: object, Err: err}
	switch {
	case op == "open" && errors.Is(err, unix.ENOENT):
		e.Hint = "modprobe rdma_ucm, or pass the node into this container"
	case op == "open" && errors.Is(err, fs.ErrPermission):
		e.Hint = "the device node does not admit this user"
	case errors.Is(err, verbs.ErrNoRoute): // which lists the devices
	case errors.Is(err, unix.ENODEV):
		e.Hint = "no RDMA device serves this address: see verbs devices"
	case errors.Is(err, unix.EADDRNOTAVAIL):
		e.Hint = "the address is none of this machine's"
	}
	return e
}
