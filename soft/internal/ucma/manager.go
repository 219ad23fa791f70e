package ucma

import (
	"net/netip"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/soft/internal/ibcm"
	"github.com/goverbs/verbs/soft/internal/uapi"
)

// Manager is the connection manager of one machine.
type Manager struct {
	cm    *ibcm.Manager
	route Router

	// The lock of cm guards all that follows.
	devices  []*Device
	contexts uapi.Table[context]
	groups   uapi.Table[group]
	ports    map[portKey]*bindList // in use
	lastPort uint16                // that was chosen for an ID
	anywhere map[*id]struct{}      // listeners on all devices

	// Addresses of the devices, and whether one of each family is a loopback address.
	addrs                []netip.Addr
	loopback4, loopback6 bool
}

// New makes a manager without devices. If r is nil, all devices are on one network, which is
// not the operating system's.
func New(r Router) *Manager {
	m := &Manager{cm: ibcm.New(), route: r, ports: map[portKey]*bindList{}, anywhere: map[*id]struct{}{}}
	if r == nil {
		m.route = nearest
	}
	return m
}

func (m *Manager) lock() { m.cm.Lock() }

// unlock releases the lock and sends messages.
func (m *Manager) unlock() { m.cm.Unlock() }

// Transport is what a device provides. Package engine's Device implements it.
type Transport interface {
	ibcm.Transport
	PortAttr() verbs.PortAttr
	GIDs() []verbs.GIDEntry
}

// Device is a device of a manager.
type Device struct {
	*ibcm.Device
	m         *Manager
	transport Transport
	index     int
	guid      verbs.GUID
}

// AddDevice adds a device. index is the one that commands return. The caller passes the
// management datagrams that the device receives to [ibcm.Device.Receive].
func (m *Manager) AddDevice(t Transport, index int) *Device {
	d := &Device{m: m, transport: t, index: index, guid: t.Attr().NodeGUID, Device: m.cm.AddDevice(t)}
	m.lock()
	defer m.unlock()
	m.devices = append(m.devices, d)
	m.updateAddrs()
	for i := range m.anywhere {
		i.listenOn(d)
	}
	return d
}

// Remove removes the device: its IDs get DEVICE_REMOVAL and are closed (cma_remove_one). When
// it has returned, the device's transport is not used any more. It may be called again.
func (d *Device) Remove() {
	m := d.m
	m.lock()
	m.devices = slices.DeleteFunc(m.devices, func(x *Device) bool { return x == d })
	m.updateAddrs()
	for i := range m.anywhere {
		i.stopListeningOn(d)
	}
	for _, c := range m.contexts.Values {
		if c != nil && c.id != nil && c.id.device == d {
			c.id.state = removed
			c.handle(c.id, &event{typ: deviceRemoval})
		}
	}
	m.unlock()
	d.Device.Remove()
}

// deviceOf returns the device with a local address, or nil.
func (m *Manager) deviceOf(addr netip.Addr) *Device {
	for _, d := range m.devices {
		if addr.IsValid() && d.transport.GIDIndex(addr) >= 0 {
			return d
		}
	}
	return nil
}

func (m *Manager) updateAddrs() {
	m.addrs, m.loopback4, m.loopback6 = nil, false, false
	for _, d := range m.devices {
		for _, g := range d.transport.GIDs() {
			a := g.GID.Addr()
			m.addrs = append(m.addrs, a)
			m.loopback4 = m.loopback4 || a.IsLoopback() && a.Is4()
			m.loopback6 = m.loopback6 || a.IsLoopback() && a.Is6()
		}
	}
}

// isAny reports whether an address is a wildcard or a loopback address (cma_any_addr). Loopback
// addresses are ordinary addresses if a device has one of the same family.
func (m *Manager) isAny(a *sockaddr) bool {
	served := m.loopback6
	if a.family == afInet {
		served = m.loopback4
	}
	return a.isZero() || a.addr.IsLoopback() && !served
}

// findSource returns the address of this machine from which packets to dst are sent. It
// releases the lock for a while.
func (m *Manager) findSource(dst netip.Addr) (netip.Addr, error) {
	devices := m.addrs // is replaced, not changed
	m.unlock()
	defer m.lock()
	return m.route(dst, devices)
}
