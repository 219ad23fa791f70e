package ucma

import (
	"errors"
	"net/netip"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft/internal/ibcm"
)

// errRefused makes ibcm reject a request.
var errRefused = errors.New("connection request refused")

// answerTime is how long the program may take to answer, 4.096 µs * 2^24
// (CMA_CM_MRA_SETTING).
const answerTime = 24

// handleRequest handles a connection request, or a request for a datagram QP, on the device
// (cma_ib_req_handler). If it fails, the request is rejected.
func (d *Device) handleRequest(cm *ibcm.ID, e *ibcm.Event) error {
	var h roce.CMAHeader
	if h.Decode(e.PrivateData) != nil || !isHost(h.Src) || d.transport.GIDIndex(h.Dst) < 0 {
		return errRefused
	}
	// The peer is known by the address in this header: it must be the one that it sends from, where
	// the answer and the data go (ibcm compares the path's). The kernel does not compare them.
	if h.Src.Unmap() != cm.PeerAddr().Unmap() {
		return errRefused
	}
	ev := &event{typ: connectRequest, privateData: e.PrivateData[roce.CMAHeaderSize:]}
	var service roce.ServiceID
	typ := e.QPType
	if r := e.Request; r != nil {
		service, ev.ece = r.ServiceID, abi.RdmaUcmEce{VendorId: r.VendorID, AttrMod: r.ECEOptions}
		ev.param = abi.RdmaUcmConnParam{
			QpNum: r.LocalQPN, ResponderResources: r.InitiatorDepth, InitiatorDepth: r.ResponderResources, RetryCount: r.RetryCount,
			RnrRetryCount: r.RNRRetryCount, FlowControl: flag(r.FlowControl), Srq: flag(r.SRQ),
		}
		if mtu := d.transport.PortAttr().ActiveMTU; e.Path.MTU < 1 || e.Path.MTU > mtu {
			cm.RejectMTU(mtu)
			return errRefused
		}
	} else {
		service, typ = e.Resolution.ServiceID, verbs.UD
	}
	port := uint16(service)
	l := d.m.findListener(d, uint16(service>>16), port, h.Dst)
	if l == nil || l.typ != typ && l.typ != 0 {
		return errRefused
	}
	conn := d.m.newID(l.space, typ)
	conn.state, conn.cm, conn.path = connecting, cm, e.Path
	conn.src, conn.dst = ipAddr(h.Dst, port), ipAddr(h.Src, h.Port)
	conn.device, conn.routable = d, true
	cm.Context, cm.Handler = conn, handleEvent
	if err := l.context.handleRequest(conn, ev); err != nil {
		conn.cm = nil // the caller destroys it
		conn.destroy()
		return err
	}
	if typ != verbs.UD {
		cm.Delay(answerTime)
	}
	return nil
}

// isHost reports whether a peer can have an address (validate_ipv4_net_dev).
func isHost(a netip.Addr) bool {
	return !a.IsMulticast() && !a.IsUnspecified() && (!a.Is4() || a.As4()[0] != 0 && a != netip.AddrFrom4([4]byte{255, 255, 255, 255}))
}

func ipAddr(a netip.Addr, port uint16) sockaddr {
	family := uint16(afInet6)
	if a.Is4() {
		family = afInet
	}
	return sockaddr{family: family, addr: a, port: port}
}

// findListener returns the ID that listens at a local address and port on a device, or nil
// (cma_find_listener).
func (m *Manager) findListener(d *Device, space, port uint16, addr netip.Addr) *id {
	list := m.ports[portKey{space, port}]
	if list == nil {
		return nil
	}
	for _, i := range list.owners {
		if i.state == listening && (i.device == nil || i.device == d) && i.serves(addr) {
			return i
		}
	}
	return nil
}

// serves reports whether requests to a local address are for the ID, which listens
// (cma_match_private_data).
func (i *id) serves(addr netip.Addr) bool {
	everywhere := i.m.isAny(&i.src)
	switch {
	case everywhere && !i.afOnly.value:
		return true
	case addr.Is4() != (i.src.family == afInet):
		return false
	}
	return everywhere || i.src.addr == addr
}
