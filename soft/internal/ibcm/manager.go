package ibcm

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// Transport is what a [Manager] needs of a device. Package engine's Device implements it.
type Transport interface {
	// SendMAD sends a datagram from QP 1 to QP 1 of the device with address dst, with a traffic
	// class. It is called without locks, and may call Receive.
	SendMAD(gidIndex int, dst netip.Addr, tos uint8, mad []byte) error
	// Acknowledge sends the acknowledgement that the QP owes its peer, which takes unacknowledged
	// requests for lost when it learns that the connection has ended. It is called without locks.
	Acknowledge(qp uint32)
	// GIDIndex returns the index of the GID for a local address, or -1.
	GIDIndex(addr netip.Addr) int
	// GID returns an entry of the GID table.
	GID(i int) (verbs.GID, bool)
	// Attr returns the attributes of the device.
	Attr() verbs.DeviceAttr
}

// Manager is a connection manager of several devices.
type Manager struct {
	mu sync.Mutex

	// Messages name the connection by the number that their receiver has given it, so ids finds it.
	// A REQ has none yet: whether it is new, or repeated, or of a peer that has forgotten a
	// connection, is found by the peer's numbers.
	ids       map[uint32]*ID // by local communication ID
	listeners map[serviceKey]*Listener
	remoteIDs map[remoteKey]*ID // connections by the peer and its communication ID: repeated REQs and REPs
	remoteQPs map[remoteKey]*ID // connections by the peer and its QP number: stale connections
	requests  map[requestKey]*ID
	tidHigh   uint32

	unsent []*Device // have messages to send since Lock
}

// remoteKey names a communication ID, or a QP, of a peer. Both are numbers that each device gives
// out by itself, so the device is part of the key. Unlike the kernel's it has the address that the
// peer's messages come from, so that a host that knows numbers of another one cannot end its
// connections.
type remoteKey struct {
	guid   uint64
	gid    verbs.GID
	number uint32
}

// requestKey names a SIDR request of a peer, so that a repeated one is known.
type requestKey struct {
	device *Device
	gid    verbs.GID
	id     uint32
}

// New makes a manager without devices.
func New() *Manager {
	return &Manager{
		ids:       map[uint32]*ID{},
		listeners: map[serviceKey]*Listener{},
		remoteIDs: map[remoteKey]*ID{},
		remoteQPs: map[remoteKey]*ID{},
		requests:  map[requestKey]*ID{},
		tidHigh:   roce.Random(),
	}
}

// Lock acquires the lock that guards the manager's state. All functions of the package
// are called with it held, unless their comment says otherwise, and so are handlers.
func (m *Manager) Lock() { m.mu.Lock() }

// Unlock releases the lock and sends the messages that were made since Lock.
func (m *Manager) Unlock() {
	devices := m.unsent
	m.unsent = nil
	m.mu.Unlock()
	for _, d := range devices {
		d.sendQueue()
	}
}

// Device is a device of a manager.
type Device struct {
	manager   *Manager
	transport Transport
	guid      uint64
	ackDelay  uint8
	flush     bool // the device supports FLUSH
	removed   bool
	noRoom    uint64 // connection requests that handlers had no room for

	queue   []datagram    // guarded by the manager's lock
	sending chan struct{} // closed when the goroutine that sends the queue has ended; nil if there is none
}

// datagram is a message to send, or if mad is nil the acknowledgement that a QP owes.
type datagram struct {
	gidIndex int
	dst      netip.Addr
	tos      uint8
	mad      []byte
	qp       uint32
}

// AddDevice adds a device. The caller passes what the device receives to Receive. Its GUID names it
// to peers in REQ and REP, and its delay in acknowledging goes into their timeouts.
func (m *Manager) AddDevice(t Transport) *Device {
	attr := t.Attr()
	const flush = abi.IB_UVERBS_DEVICE_FLUSH_GLOBAL | abi.IB_UVERBS_DEVICE_FLUSH_PERSISTENT
	return &Device{
		manager: m, transport: t, guid: binary.BigEndian.Uint64(attr.NodeGUID[:]),
		ackDelay: attr.LocalCAAckDelay, flush: attr.CapFlags&flush != 0,
	}
}

// Remove removes the device: nothing is received or sent any more. Before, the caller
// destroys all IDs and listeners on it. Remove is called without the manager's lock, and not
// by SendMAD; when it has returned, the transport is not used.
func (d *Device) Remove() {
	d.manager.Lock()
	d.removed = true
	d.manager.Unlock()
	d.sendQueue()
	d.manager.Lock()
	sending := d.sending
	d.manager.Unlock()
	if sending != nil {
		<-sending
	}
}

// NoRoom returns how many connection requests were dropped with [ErrNoRoom]. It is called without
// the manager's lock.
func (d *Device) NoRoom() uint64 {
	d.manager.mu.Lock()
	defer d.manager.mu.Unlock()
	return d.noRoom
}

// send queues a message, whose variable parts are not too long. It travels in the traffic class of
// its connection (cm_alloc_msg makes its address handle of the ID's), so that a network that treats
// classes apart does so with both.
func (d *Device) send(to *verbs.AddressVector, tid uint64, m roce.CMMessage) {
	mad, err := roce.AppendCM(nil, tid, m)
	if err == nil {
		d.enqueue(datagram{gidIndex: int(to.SGIDIndex), dst: to.DGID.Addr(), tos: to.TrafficClass, mad: mad})
	}
}

func (d *Device) enqueue(g datagram) {
	if d.removed {
		return
	}
	if len(d.queue) == 0 {
		d.manager.unsent = append(d.manager.unsent, d)
	}
	d.queue = append(d.queue, g)
}

// sendQueue sends the queue, in order, unless another goroutine does. It is called without
// the manager's lock: SendMAD to a device of this machine may call Receive, which takes it.
func (d *Device) sendQueue() {
	m := d.manager
	m.mu.Lock()
	if d.sending != nil {
		m.mu.Unlock()
		return
	}
	sending := make(chan struct{})
	d.sending = sending
	for len(d.queue) > 0 {
		queue := d.queue
		d.queue = nil
		m.mu.Unlock()
		for _, g := range queue {
			if g.mad == nil {
				d.transport.Acknowledge(g.qp)
				continue
			}
			d.transport.SendMAD(g.gidIndex, g.dst, g.tos, g.mad) // an error is like a loss
		}
		m.mu.Lock()
	}
	d.sending = nil
	m.mu.Unlock()
	close(sending)
}

// newLocalID returns a communication ID that is not in use. 0 means none in messages.
func (m *Manager) newLocalID() uint32 {
	for {
		if id := roce.Random(); id != 0 && m.ids[id] == nil {
			return id
		}
	}
}

// duration converts a time in InfiniBand's coding, 4.096 µs * 2^t, as ib_cm does
// (cm_convert_to_ms): 2^8 of the unit are about a millisecond, and shorter times are one.
func duration(t uint8) time.Duration {
	return time.Millisecond << max(int(t&31)-8, 0)
}

// ackTimeout returns the local ACK timeout in InfiniBand's coding (cm_ack_timeout): twice the
// lifetime of a packet, there and back, and the delay of the peer's device (IBA, 12.7.34). As the
// times are exponents, adding one doubles, and the sum of two is about the larger one, or the next
// if the other is close.
func ackTimeout(ackDelay, lifetime uint8) uint8 {
	timeout := lifetime + 1
	switch {
	case timeout >= ackDelay:
		if ackDelay >= timeout-1 {
			timeout++
		}
	case timeout >= ackDelay-1:
		timeout = ackDelay + 1
	default:
		timeout = ackDelay
	}
	return min(31, timeout)
}
