package cm

import (
	"encoding/binary"
	"runtime"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// SetTOS sets the type of service, or traffic class, of the connection's
// packets (RDMA_OPTION_ID_TOS).
func (id *ID) SetTOS(tos uint8) error {
	return id.setOption("type of service", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, []byte{tos})
}

// SetReuseAddr allows several IDs to bind to one address. It is called before Bind.
func (id *ID) SetReuseAddr(on bool) error {
	return id.setOption("reuse of addresses", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, flag(on))
}

// SetAFOnly limits a listener on the IPv6 wildcard to IPv6 connections.
func (id *ID) SetAFOnly(on bool) error {
	return id.setOption("address family", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, flag(on))
}

// SetAckTimeout sets how long the QP waits for an acknowledgement: 4.096 us * 2^exp. It must be
// called before ResolveRoute.
func (id *ID) SetAckTimeout(exp uint8) error {
	id.ackTimeoutSet.Store(true)
	return id.setOption("acknowledgement timeout", abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{exp})
}

func flag(on bool) []byte {
	b := make([]byte, 4) // an int
	if on {
		binary.NativeEndian.PutUint32(b, 1)
	}
	return b
}

func (id *ID) setOption(what string, level, name uint32, value []byte) error {
	var pin runtime.Pinner
	defer pin.Unpin()
	err := idCommand(id, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.RdmaUcmSetOption{
		Optval: mmap.Pin(&pin, value), Id: id.handle, Level: level, Optname: name, Optlen: uint32(len(value)),
	})
	return fail("set "+what+" of ID", "", err)
}

// Notify reports an event of the connection's QP to the connection manager (rdma_notify(3)):
// EventCommEst, when a message has come before Established, which then follows at once.
func (id *ID) Notify(event verbs.AsyncEventType) error {
	return fail("notify ID", "", idCommand(id, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.RdmaUcmNotify{Id: id.handle, Event: uint32(event)}))
}

// GIDs returns the GIDs of both ends.
func (id *ID) GIDs() (local, remote verbs.GID, err error) {
	req := abi.RdmaUcmQuery{Id: id.handle, Option: abi.RDMA_USER_CM_QUERY_GID}
	var r abi.RdmaUcmQueryAddrResp
	if err := idQuery(id, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response, &r); err != nil {
		return local, remote, fail("query GIDs of ID", "", err)
	}
	// struct sockaddr_ib: family, P_Key, flow, then the GID.
	copy(local[:], mmap.Bytes(&r.SrcAddr)[8:])
	copy(remote[:], mmap.Bytes(&r.DstAddr)[8:])
	return local, remote, nil
}
