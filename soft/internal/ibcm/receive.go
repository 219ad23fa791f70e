package ibcm

import (
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/roce"
)

// Source is where a message came from.
type Source struct {
	GIDIndex     int // of the local address that it was sent to
	Addr         netip.Addr
	TrafficClass uint8
}

type message struct {
	device *Device
	from   Source
	tid    uint64
	reply  av // where answers go
}

func (m *message) answer(a roce.CMMessage) { m.device.send(&m.reply.AddressVector, m.tid, a) }

// Receive handles a datagram that QP 1 of the device has received. Datagrams that are not
// valid messages, or that fit no connection, are dropped. It is called without the manager's
// lock, in the order of arrival.
func (d *Device) Receive(from Source, mad []byte) {
	h, body, err := roce.DecodeCM(mad)
	if err != nil {
		return
	}
	m := d.manager
	m.Lock()
	defer m.Unlock()
	// Answers go to the address that the datagram came from, whatever is in it.
	reply, ok := d.replyAV(&from)
	if d.removed || !ok {
		return
	}
	msg := &message{d, from, h.TID, reply}
	switch body := body.(type) {
	case *roce.REQ:
		msg.handleREQ(body)
	case *roce.MRA:
		m.handleMRA(body)
	case *roce.REJ:
		msg.handleREJ(body)
	case *roce.REP:
		msg.handleREP(body)
	case *roce.RTU:
		m.handleRTU(body)
	case *roce.DREQ:
		msg.handleDREQ(body)
	case *roce.DREP:
		m.handleDREP(body)
	case *roce.SIDRREQ:
		msg.handleSIDRREQ(body)
	case *roce.SIDRREP:
		m.handleSIDRREP(body)
	}
}

// Refused handles the report that a host has nothing that receives the device's datagrams: a
// request to it fails at once. mad is the beginning of a datagram that the host has quoted. Reports
// can be forged, but only who has seen the request knows its transaction ID, 64 random bits. A host
// that has answered already is not believed. It is called without the manager's lock.
func (d *Device) Refused(dst netip.Addr, mad []byte) {
	tid, ok := roce.QuotedTID(mad)
	if !ok {
		return
	}
	m := d.manager
	m.Lock()
	defer m.Unlock()
	id := m.ids[uint32(tid)]
	// The lower half of a transaction ID is the communication ID, see newTID.
	if id == nil || id.device != d || id.tid != tid || id.pending == nil || id.pending.to.DGID.Addr() != dst.Unmap() {
		return
	}
	e := &Event{Refused: true}
	switch id.state {
	case RequestSent:
		e.Type = RequestFailed
		id.cancel()
		id.resetToIdle()
	case ResolveSent:
		e.Type = ResolveFailed
		id.cancel()
		id.state = Idle
	default:
		return
	}
	id.handle(e)
}

// replyAV returns the address vector of answers to a message (ib_init_ah_attr_from_wc). It
// reports false if the message was not sent to an address of the device.
func (d *Device) replyAV(from *Source) (av, bool) {
	if _, ok := d.transport.GID(from.GIDIndex); !ok {
		return av{}, false
	}
	return av{AddressVector: verbs.AddressVector{
		Global: true, DGID: from.Addr.As16(), SGIDIndex: uint8(from.GIDIndex), HopLimit: 255,
		TrafficClass: from.TrafficClass, Port: 1,
	}}, true
}
