package ucma

import (
	"net/netip"

	"github.com/goverbs/verbs/internal/host"
)

// stateNames are the names of rdma-resource(8).
var stateNames = [...]string{
	idle: "IDLE", addrQuery: "ADDR_QUERY", addrKnown: "ADDR_RESOLVED", routeKnown: "ROUTE_RESOLVED", connecting: "CONNECT",
	wasConnected: "DISCONNECT", bound: "ADDR_BOUND", listening: "LISTEN", removed: "DEVICE_REMOVAL", destroying: "DESTROYING",
}

// Objects returns the IDs that are bound to the device, or listen on all devices.
func (d *Device) Objects() (all []host.Object) {
	d.m.lock()
	defer d.m.unlock()
	for num, c := range d.m.contexts.values {
		if c == nil || c.id == nil || c.id.device != d && (c.id.device != nil || c.id.state != listening) {
			continue
		}
		i := c.id
		o := host.Object{
			Kind: "cm_id", Num: uint32(num), QPType: i.typ, Space: uint32(i.space), CMState: stateNames[i.state],
			Local: i.src.addrPort(), Remote: i.dst.addrPort(),
		}
		if i.device == d {
			o.Port = 1
		}
		if i.qpNum != 0 {
			o.QPs = []uint32{i.qpNum}
		}
		all = append(all, o)
	}
	return all
}

// addrPort returns the address, if it is one of IP.
func (a *sockaddr) addrPort() netip.AddrPort {
	if !a.addr.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.addr, a.port)
}
