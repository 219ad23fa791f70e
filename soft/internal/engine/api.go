package engine

import (
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/soft/internal/netif"
)

// This file lists what users of the package call. Errors that the kernel reports as an
// errno are constants of package unix (EINVAL, ENOMEM, EOPNOTSUPP, ENODEV after Remove or
// Close), and EBUSY of package syscall. Every method is safe for concurrent use.
//
// Callbacks Notify and Event are called with locks of the engine held, from any goroutine:
// they must not block and must not call the engine. They may take a lock that is never held
// while the engine is called. They are not called after the object's Destroy has returned.

// Config describes a device.
type Config struct {
	Name         string
	NodeGUID     verbs.GUID // the zero GUID selects one made of the first address
	SysImageGUID verbs.GUID // the zero GUID selects NodeGUID
	Network      netif.Network
	// Addrs are the addresses of the device. GID i of its table is that of Addrs[i]. If
	// there is an IPv6 address and the network has a port for it, a link-local address
	// made of NodeGUID follows.
	Addrs []netip.Addr
	Port  uint16    // UDP port; 0 selects 4791
	MTU   verbs.MTU // active MTU; 0 selects the largest that all ports carry
}

// New makes a device and opens its ports.
func New(cfg Config) (*Device, error) { return newDevice(cfg) }

// Name returns the device's name.
func (d *Device) Name() string { return d.name }

// Attr returns the attributes of the device, which are rxe's.
func (d *Device) Attr() verbs.DeviceAttr { return d.attr() }

// PortAttr returns the attributes of port 1, which are rxe's.
func (d *Device) PortAttr() verbs.PortAttr { return d.portAttr() }

// GIDs returns the valid entries of the GID table. An entry's Interface is 0.
func (d *Device) GIDs() []verbs.GIDEntry { return d.gidEntries() }

// GID returns entry i of the GID table. It reports false if the entry is not valid.
func (d *Device) GID(i int) (verbs.GID, bool) { return d.gid(i) }

// GIDIndex returns the index of the GID for a local address, or -1.
func (d *Device) GIDIndex(addr netip.Addr) int { return d.gidIndex(addr) }

// PKey returns entry i of the P_Key table, which has one entry. It fails with EINVAL.
func (d *Device) PKey(i int) (uint16, error) { return d.pkey(i) }

// Counter is a hardware counter of a port.
type Counter struct {
	Name  string
	Value uint64
}

// Counters returns the counters of port 1, in rxe's order and with its names.
func (d *Device) Counters() []Counter { return d.counters.list() }

// OnEvent sets the function that is called for events of the device and its port. Nil
// sets none.
func (d *Device) OnEvent(f func(verbs.AsyncEventType)) { d.setEvent(f) }

// Remove removes the device, as when the hardware is unplugged: every QP is moved to the
// error state, where its work requests are flushed, [verbs.EventDeviceFatal] is reported,
// and the ports are closed. Objects may be destroyed later; anything else fails with ENODEV.
func (d *Device) Remove() { d.remove() }

// Close ends the device. No goroutine of it runs when Close has returned. It must not be
// called from a callback. It may be called again.
func (d *Device) Close() error { return d.close() }

// MAD is a received management datagram.
type MAD struct {
	GIDIndex     int        // of the local address it was sent to
	Src          netip.Addr // address of the sender
	SrcQP        uint32
	TrafficClass uint8
	Data         []byte // valid during the call
}

// OnMAD sets the function that is called for each datagram that QP 1 receives. It is
// called from a goroutine of its own, one datagram at a time and without locks, so it may
// call the engine, except Close. Nil sets none: datagrams are then dropped.
func (d *Device) OnMAD(f func(*MAD)) { d.mads.setHandler(f) }

// SendMAD sends a datagram from QP 1 to QP 1 of the device with address dst, from the
// address with index gidIndex. The datagram may be for the device itself. Like the network,
// it may lose datagrams without an error. It fails with EINVAL if there is no such GID, the
// address is of the other family, or mad has more than 256 bytes.
func (d *Device) SendMAD(gidIndex int, dst netip.Addr, mad []byte) error {
	return d.sendMAD(gidIndex, dst, mad)
}

// Bytes returns the memory of the ring, header included.
func (r *Ring) Bytes() []byte { return r.mem }

// Cap returns the largest number of elements that the ring holds.
func (r *Ring) Cap() int { return int(r.mask) }

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) { return d.allocPD() }

// Dealloc ends the PD. It fails with EBUSY while objects depend on it.
func (pd *PD) Dealloc() error { return pd.dealloc() }

// RegisterMR registers length bytes of the process's memory at addr, which peers and
// work requests address as iova and following. It fails with EFAULT if the memory is not
// mapped or, with [verbs.AccessLocalWrite], not writable, and with EINVAL or EOPNOTSUPP for
// access that is not supported. The memory must stay mapped until Dereg.
func (pd *PD) RegisterMR(addr, length, iova uint64, access verbs.Access) (*MR, error) {
	return pd.registerMR(addr, length, iova, access)
}

// LKey returns the local key.
func (mr *MR) LKey() uint32 { return mr.key }

// RKey returns the remote key, which is the same.
func (mr *MR) RKey() uint32 { return mr.key }

// Length returns the length of the region.
func (mr *MR) Length() uint64 { return mr.length }

// Rereg changes the PD, unless pd is nil, and the access, unless access is nil.
func (mr *MR) Rereg(pd *PD, access *verbs.Access) error { return mr.rereg(pd, access) }

// Dereg ends the registration. When it has returned the memory is not accessed. It fails
// with EINVAL while memory windows are bound to the region.
func (mr *MR) Dereg() error { return mr.dereg() }

// AllocMW makes a memory window.
func (pd *PD) AllocMW(typ verbs.MWType) (*MW, error) { return pd.allocMW(typ) }

// RKey returns the window's key. Binding changes its last byte.
func (mw *MW) RKey() uint32 { return mw.currentKey() }

// Dealloc ends the window.
func (mw *MW) Dealloc() error { return mw.dealloc() }

// CreateAH makes an address handle.
func (pd *PD) CreateAH(av verbs.AddressVector) (*AH, error) { return pd.createAH(av) }

// Num returns the number that work requests name the handle by (rxe's ah_num).
func (ah *AH) Num() uint32 { return ah.num }

// Query returns the address vector.
func (ah *AH) Query() verbs.AddressVector { return ah.query() }

// Modify changes the address vector.
func (ah *AH) Modify(av verbs.AddressVector) error { return ah.modify(av) }

// Destroy ends the handle.
func (ah *AH) Destroy() error { return ah.destroy() }

// CQInit describes a CQ.
type CQInit struct {
	Entries int
	Notify  func()                     // called once for each Arm, when a completion arrives
	Event   func(verbs.AsyncEventType) // called for [verbs.EventCQErr]
}

// CreateCQ makes a completion queue. It fails with EINVAL if Entries is out of range.
func (d *Device) CreateCQ(init CQInit) (*CQ, error) { return d.createCQ(init) }

// Ring returns the queue of completions, whose elements are abi.IbUverbsWc.
func (cq *CQ) Ring() *Ring { return cq.currentRing() }

// Arm requests a call of Notify for the next completion, or the next solicited or failed
// one. Completions that are in the queue already do not count.
func (cq *CQ) Arm(solicitedOnly bool) error { return cq.arm(solicitedOnly) }

// Resize moves the completions to a new ring, which Ring returns from then on. It fails
// with EINVAL if they do not fit.
func (cq *CQ) Resize(entries int) error { return cq.resize(entries) }

// Destroy ends the CQ. It fails with EBUSY while QPs use it.
func (cq *CQ) Destroy() error { return cq.destroy() }

// SRQInit describes an SRQ.
type SRQInit struct {
	MaxWR, MaxSGE int
	Limit         int
	Event         func(verbs.AsyncEventType) // called for [verbs.EventSRQLimitReached]
}

// CreateSRQ makes a shared receive queue.
func (pd *PD) CreateSRQ(init SRQInit) (*SRQ, error) { return pd.createSRQ(init) }

// Num returns the SRQ's number.
func (s *SRQ) Num() uint32 { return s.num }

// Ring returns the queue of receives, whose elements are abi.RxeRecvWqe.
func (s *SRQ) Ring() *Ring { return s.currentRing() }

// Query returns the number of work requests and SGEs that the queue takes, and the limit
// that is set.
func (s *SRQ) Query() (maxWR, maxSGE, limit int) { return s.query() }

// Resize moves the receives to a new ring, which Ring returns from then on.
func (s *SRQ) Resize(maxWR int) error { return s.resize(maxWR) }

// SetLimit sets the limit: an event is reported once, when fewer receives are left.
func (s *SRQ) SetLimit(limit int) error { return s.setLimit(limit) }

// Destroy ends the SRQ. It fails with EBUSY while QPs use it.
func (s *SRQ) Destroy() error { return s.destroy() }

// QPInit describes a QP.
type QPInit struct {
	Type           verbs.QPType // RC, UC or UD; others fail with EOPNOTSUPP
	SendCQ, RecvCQ *CQ
	SRQ            *SRQ        // may be nil
	Cap            verbs.QPCap // as the kernel's struct ib_qp_cap: without defaults
	SignalAll      bool
	Event          func(verbs.AsyncEventType) // events of the QP
}

// CreateQP makes a QP. It fails with EINVAL if sizes are out of range.
func (pd *PD) CreateQP(init QPInit) (*QP, error) { return pd.createQP(init) }

// Num returns the QP's number.
func (qp *QP) Num() uint32 { return qp.num }

// Cap returns the sizes of the queues as created.
func (qp *QP) Cap() verbs.QPCap { return qp.cap }

// SendRing returns the send queue, whose elements are abi.RxeSendWqe with SGEs or inline
// data.
func (qp *QP) SendRing() *Ring { return qp.sq.ring }

// RecvRing returns the receive queue, whose elements are abi.RxeRecvWqe with SGEs, or nil
// if the QP has an SRQ.
func (qp *QP) RecvRing() *Ring { return qp.rq.ring }

// Modify changes attributes, as rxe_modify_qp with the checks of ib_modify_qp_is_ok.
func (qp *QP) Modify(attr *verbs.QPAttr, mask verbs.QPAttrMask) error { return qp.modify(attr, mask) }

// Query returns all attributes.
func (qp *QP) Query() verbs.QPAttr { return qp.query() }

// Doorbell processes the send queue after requests were added to it, and flushes the
// receive queue of a QP in the error state. It fails with EINVAL in the states before RTS.
func (qp *QP) Doorbell() error { return qp.doorbell() }

// AttachMulticast makes a UD QP receive datagrams of a multicast group. Attaching again
// has no effect.
func (qp *QP) AttachMulticast(gid verbs.GID) error { return qp.attachMulticast(gid) }

// DetachMulticast ends that. It fails with EINVAL if the QP is not attached.
func (qp *QP) DetachMulticast(gid verbs.GID) error { return qp.detachMulticast(gid) }

// Destroy ends the QP. It fails with EBUSY while the QP is attached to a multicast group.
// Requests that have not completed never do.
func (qp *QP) Destroy() error { return qp.destroy() }
