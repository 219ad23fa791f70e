package cm

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"

	"github.com/goverbs/verbs"
)

// This file checks the claims of a peer in its request or reply: the connection manager turns them
// into attributes of the QP without checking them.

// maxACKTimeout is the longest ACK timeout that a peer can make a QP use: 4.3 s (4.096 us * 2^20),
// 30 s for all repetitions. A peer can ask for 2.4 hours: the QP would notice its death only after
// a day. rdma_cm asks for 0.5 s. [ID.SetAckTimeout] sets any time.
const maxACKTimeout = 20

// checkRTR checks and limits the attributes with which the QP moves to RTR. On the accepting side
// the path comes from the peer.
func (e *Endpoint) checkRTR(attr *verbs.QPAttr, accepting bool) error {
	attr.MaxDestRDAtomic = min(attr.MaxDestRDAtomic, e.plan.resources)
	if !accepting {
		return nil
	}
	port, err := e.PD.Context().QueryPort(max(e.route.Port, 1))
	if err != nil {
		return err
	}
	return checkPath(e.route.Remote.Addr(), attr, port)
}

// checkPath refuses a path that does not lead to remote, the address that the peer states in its
// private data, or that this side's port cannot send on. On RoCE the path's GID is the address
// that the packets go to; InfiniBand's GIDs are no IP addresses.
func checkPath(remote netip.Addr, attr *verbs.QPAttr, port *verbs.PortAttr) error {
	if port.LinkLayer == verbs.LinkEthernet && remote.Unmap().WithZone("") != attr.AV.DGID.Addr().Unmap() {
		return fmt.Errorf("the peer claims the address %v, but the data would go to %v", remote, attr.AV.DGID.Addr())
	}
	if attr.PathMTU > port.ActiveMTU {
		return &mtuError{attr.PathMTU, port.ActiveMTU}
	}
	return nil
}

// checkRTS limits the attributes with which the QP moves to RTS.
func (e *Endpoint) checkRTS(attr *verbs.QPAttr) {
	attr.MaxRDAtomic = min(attr.MaxRDAtomic, e.plan.depth)
	if !e.id.ackTimeoutSet.Load() {
		attr.Timeout = min(attr.Timeout, maxACKTimeout)
	}
}

// mtuError is the error of a request whose path MTU is larger than the port's: messages that fill
// it could be received, but this side's would not leave the host. Both sides must use one MTU.
type mtuError struct{ path, port verbs.MTU }

func (e *mtuError) Error() string {
	return fmt.Sprintf("the peer asks for a path MTU of %d bytes, and this port's is %d: the network interfaces of both hosts should have one MTU", e.path.Bytes(), e.port.Bytes())
}

// mtuRejection begins the private data of a rejection for the path MTU. The kernel does not let
// programs send IBTA's reason for it, which devices in user space send.
const mtuRejection = "verbs: path MTU too large\x00"

// smallerPath returns the path of a rejected request with the next smaller MTU, or nil if the peer
// objects to something else. The peer's MTU is not known: the kernel does not pass it on.
func (e *Endpoint) smallerPath(err error) *PathRecord {
	r, ok := errors.AsType[*RejectedError](err)
	if !ok || r.Reason != rejectInvalidMTU && (r.Reason != rejectConsumer || !bytes.HasPrefix(r.PrivateData, []byte(mtuRejection))) {
		return nil
	}
	records, qerr := e.id.PathRecords()
	if qerr != nil || len(records) == 0 || records[0].MTU <= 1 {
		return nil
	}
	records[0].MTU--
	return &records[0]
}
