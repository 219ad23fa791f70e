package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"syscall"

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

// SetAckTimeout sets how long the QP waits for an acknowledgement: 4.096 us *
// 2^exp. It must be called before the route is resolved or the QP is connected.
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

// Notify reports an asynchronous event of the connection's QP to the connection manager:
// EventCommEst, when a message has come before Established, which then follows at once
// (rdma_notify(3)). [Request.Accept] does that itself if the endpoint has its own RecvCQ.
func (id *ID) Notify(event verbs.AsyncEventType) error {
	return fail("notify ID", "", idCommand(id, abi.RDMA_USER_CM_CMD_NOTIFY, &abi.RdmaUcmNotify{Id: id.handle, Event: uint32(event)}))
}

// WriteEvent adds a [User] event with a status and an argument to the ID's events
// (rdma_write_cm_event(3)). On kernels before 6.17 it fails with an error that matches
// errors.ErrUnsupported.
func (id *ID) WriteEvent(status int, arg uint64) error {
	req := abi.RdmaUcmWriteCmEvent{Id: id.handle, Event: uint32(User), Status: uint32(status)}
	*req.Param.Arg() = arg
	return fail("write event of ID", "", newer(idCommand(id, abi.RDMA_USER_CM_CMD_WRITE_CM_EVENT, &req)))
}

// newer makes the EINVAL of kernels that do not know a command match
// errors.ErrUnsupported.
func newer(err error) error {
	if err == syscall.EINVAL {
		return fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return err
}

// Migrate moves the ID and its events to another channel (rdma_migrate_id(3)). No
// other method of the ID except Next may run at the same time.
func (id *ID) Migrate(to *Channel) error {
	if err := id.beginCommand(); err != nil {
		return fail("migrate ID", "", err)
	}
	defer id.endCommand()
	from := id.ch()
	if from == to {
		return nil
	}
	// While no event is in delivery on either channel, the order stays the same.
	first, second := from, to
	if first.num > second.num {
		first, second = second, first
	}
	first.deliverMu.Lock()
	defer first.deliverMu.Unlock()
	second.deliverMu.Lock()
	defer second.deliverMu.Unlock()
	// Both channels list the ID during the move, so that it is not left behind if the
	// file of one is renewed.
	numbers := id.uids()
	if !to.register(id, numbers) {
		return fail("migrate ID", "", verbs.ErrClosed)
	}
	from.thread.renewMu.RLock()
	err := from.file.Try(func(fd int) error {
		req := abi.RdmaUcmMigrateId{Id: id.handle, Fd: uint32(fd)}
		return query(to, abi.RDMA_USER_CM_CMD_MIGRATE_ID, &req, &req.Response, new(abi.RdmaUcmMigrateResp))
	})
	from.thread.renewMu.RUnlock()
	if err != nil {
		to.unregister(numbers)
		return fail("migrate ID", "", err)
	}
	from.unregister(numbers)
	id.channel.Store(to)
	id.moveEvents(from, to)
	return fail("migrate ID", "", to.drain()) // the kernel moves events but wakes no waiter
}

// register adds an ID under its numbers. It returns false if the channel has ended.
func (c *Channel) register(id *ID, numbers []uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return false
	}
	for _, n := range numbers {
		c.ids[n] = id
	}
	return true
}

// unregister removes what register has added.
func (c *Channel) unregister(numbers []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range numbers {
		delete(c.ids, n)
	}
	c.notifyUnused()
}

// moveEvents moves the events that have been delivered but not read.
func (id *ID) moveEvents(from, to *Channel) {
	var events []Event
	if from.loop != nil {
		events = from.loop.remove(id)
	} else if to.loop != nil {
		id.mu.Lock()
		events, id.events = id.events, nil
		id.wake() // Next fails on a Loop
		id.mu.Unlock()
	}
	for _, e := range events {
		to.enqueue(id, e)
	}
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
