package cm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/sys"
)

var (
	// ErrMPA is returned by Dial on iWARP when the kernel cannot use the peer's answer. On siw the
	// peer's first message mostly came with it, and the next Dial may succeed; on erdma the peer
	// may have closed the connection. It also matches EINVAL.
	ErrMPA = errors.New("MPA error: the peer's answer was not usable: it sent data before receiving any, or closed the connection")
	// ErrPrivateData is returned for more private data than the message can carry.
	ErrPrivateData = errors.New("private data is too long")
)

// MaxPrivateData is the most private data that the kernel accepts, in bytes; iWARP carries it at
// its exact length. RoCE carries 56 in a connection request, 196 in its acceptance and 148 in its
// rejection (IBTA tables 106, 110 and 108, less rdma_cm's header), for datagrams 180 and 136 (119
// and 120), padded with zeros.
const MaxPrivateData = 255

// The most private data that RoCE carries, in bytes.
const (
	roceRequest         = 56
	roceReply           = 196
	roceReject          = 148
	roceDatagramRequest = 180
	roceDatagramReply   = 136
)

// checkPrivateData returns an error for more private data than the kernel takes.
func checkPrivateData(data []byte) error {
	if len(data) > MaxPrivateData {
		return fmt.Errorf("%w: %d bytes of at most %d", ErrPrivateData, len(data), MaxPrivateData)
	}
	return nil
}

// tooLong adds ErrPrivateData to the kernel's EINVAL if the private data is longer than RoCE,
// unlike iWARP, can carry, for a connection or for datagrams.
func (id *ID) tooLong(err error, data []byte, most, datagram int) error {
	if id.space.datagram() {
		most = datagram
	}
	if errors.Is(err, syscall.EINVAL) && len(data) > most {
		return fmt.Errorf("%w: %d bytes of at most %d: %w", ErrPrivateData, len(data), most, err)
	}
	return err
}

// RejectedError is the error of a connection that the peer or its kernel rejected.
// It matches ECONNREFUSED.
type RejectedError struct {
	Reason      int // on RoCE an IBTA CM reject reason, on iWARP a negative errno, which the error also matches
	PrivateData []byte
}

// Reject reasons that occur in practice (IBTA 12.6.7.2; enum ib_cm_rej_reason).
const (
	rejectTimeout          = 4  // the peer has ended its dial before it confirmed
	rejectInvalidServiceID = 8  // no listener
	rejectStaleConn        = 10 // a late packet of an older connection
	rejectInvalidMTU       = 26 // the path MTU is larger than the port's
	rejectConsumer         = 28 // the program rejected the request
	rejectVendorOption     = 35 // the program does not accept the offered extensions
)

// shortage is what the accepting process lacks. Its code begins the private data of the rejection.
type shortage struct {
	code, text string
	errs       []error // that mean it
}

// shortages contains the most exact first.
var shortages = []shortage{
	{code: "verbs: no room\x00", text: "it has as many connections as it takes, see ListenConfig.MaxConns"},
	{code: "verbs: no mappings\x00", text: "it has too many mappings: raise its vm.max_map_count", errs: []error{host.ErrMappings}},
	{code: "verbs: no memory\x00", text: "it lacks locked memory: raise its limit, see ulimit -l, unless its own error names another", errs: []error{syscall.ENOMEM}},
	{code: "verbs: no time\x00", text: "it did not finish the handshake in its time, as it has too much to do: dial again later, or raise its limit, see rsock's HandshakeTimeout", errs: []error{context.DeadlineExceeded}},
	{code: "verbs: no files\x00", text: "it has too many open files: raise its limit, see ulimit -n", errs: []error{syscall.EMFILE, syscall.ENFILE}},
}

// rejectFor rejects a request because of a shortage, and tells the peer which.
func (id *ID) rejectFor(err error) {
	for _, s := range shortages {
		if slices.ContainsFunc(s.errs, func(target error) bool { return errors.Is(err, target) }) {
			id.reject([]byte(s.code))
			return
		}
	}
}

func (e *RejectedError) Error() string {
	for _, s := range shortages {
		if bytes.HasPrefix(e.PrivateData, []byte(s.code)) {
			return "connection rejected by the peer: " + s.text
		}
	}
	switch e.Reason {
	case rejectTimeout:
		return "connection rejected: the peer has given up before it confirmed"
	case rejectInvalidServiceID:
		return "connection refused: there is no listener at this port"
	case rejectInvalidMTU:
		return "connection rejected by the peer: the path MTU is larger than its port's"
	case rejectConsumer:
		return "connection rejected by the peer"
	case rejectVendorOption:
		return "connection rejected by the peer: extensions are not supported"
	case rejectStaleConn:
		return "connection rejected as stale"
	}
	if e.Reason < 0 {
		return "connection rejected: " + syscall.Errno(-e.Reason).Error()
	}
	return fmt.Sprintf("connection rejected, reason %d", e.Reason)
}

func (e *RejectedError) Is(target error) bool {
	return target == syscall.ECONNREFUSED || e.Reason < 0 && target == syscall.Errno(-e.Reason)
}

// As finds ECONNREFUSED as a [syscall.Errno].
func (e *RejectedError) As(target any) bool {
	errno, ok := target.(*syscall.Errno)
	if ok {
		*errno = syscall.ECONNREFUSED
	}
	return ok
}

// SendError returns wc.Err() for a completion from a send queue. The error also matches
// [verbs.ErrDisconnected] if the peer, the link or iWARP's TCP connection is gone. It is what
// [Endpoint.Reason] can tell without the endpoint.
func SendError(wc *verbs.WC) error { return gone(wc.Err()) }

// Reason takes the error of a completion ([verbs.WC.Err], [uverbs.CQ.Next]). If the request failed
// because the connection ended, Reason adds why: [verbs.ErrDisconnected], [verbs.ErrClosed] or
// [verbs.ErrDeviceRemoved]. As requests are flushed shortly before the end is known, it waits for
// Done until ctx ends, and a second at most: a queue pair that has failed by itself flushes its
// requests without an end. With a ctx that has ended it does not wait.
//
// The status WCLocQPOpErr of a send means that the link is down (rxe) or the connection has ended
// (siw). That of a receive can mean that the message was longer, which Reason cannot tell apart.
func (e *Endpoint) Reason(ctx context.Context, err error) error {
	if !errors.Is(err, verbs.WCFlushErr) {
		return gone(err)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	select {
	case <-e.life.done:
	case <-ctx.Done():
	}
	if why := e.Err(); why != nil {
		return fmt.Errorf("%w: %w", why, err)
	}
	return err
}

// gone adds [verbs.ErrDisconnected] to the error of a completion whose status means that the peer
// is gone.
func gone(err error) error {
	if errors.Is(err, verbs.WCRetryExcErr) || errors.Is(err, verbs.WCLocQPOpErr) {
		return fmt.Errorf("%w: %w", verbs.ErrDisconnected, err)
	}
	return err
}

// wrap is fail in place.
func wrap(err *error, op, addr string) { *err = fail(op, addr, *err) }

// fail wraps err, which op on an address returned. It returns nil if err is nil.
func fail(op, addr string, err error) error {
	if err == nil {
		return nil
	}
	verb, object := sys.SplitOp(op, addr)
	e := &verbs.Error{Op: verb, Object: object, Err: err}
	switch {
	case op == "open" && errors.Is(err, syscall.ENOENT):
		e.Hint = host.Remedy(addr, "modprobe rdma_ucm, or pass the node into this container, or set VERBS_SOFT=1 for a device in user space")
	case op == "open" && errors.Is(err, fs.ErrPermission):
		e.Hint = "give this user access to the device node"
	case errors.Is(err, verbs.ErrNoRoute): // its text lists the devices
	case errors.Is(err, syscall.ENODEV):
		e.Hint = "no RDMA device serves this address: see verbs devices"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		e.Hint = "no interface here has this address"
	}
	if inner, ok := errors.AsType[*verbs.Error](err); ok && inner.Hint == e.Hint {
		e.Hint = "" // said already
	}
	return e
}
