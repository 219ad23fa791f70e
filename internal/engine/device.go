package engine

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/internal/unix"
)

// Device is a RoCE v2 device.
type Device struct {
	name     string
	nodeGUID verbs.GUID
	sysGUID  verbs.GUID
	udpPort  uint16
	mtu      verbs.MTU
	ports    []*port // by index of the GID
	start    time.Time

	state  atomic.Uint32 // a deviceState
	closed sync.Mutex    // serializes remove and close
	event  atomic.Pointer[func(verbs.AsyncEventType)]

	pds, cqs atomic.Int64
	mrs      table[MR]
	mws      table[MW]
	ahs      table[AH]
	srqs     table[SRQ]
	qps      table[QP]

	counters       counters
	badPKeys       atomic.Uint32
	qkeyViolations atomic.Uint32

	groups  groups
	work    workQueue
	timers  timers
	mads    mads
	batches sync.Pool // of *batch
	packets sync.Pool // of *packet
	workers sync.WaitGroup
}

type deviceState uint32

const (
	deviceActive deviceState = iota
	deviceRemoved
	deviceClosed
)

// port is an address of the device.
type port struct {
	index int
	addr  netip.Addr     // without zone
	local netip.AddrPort // source of packets
	net   netif.Port
	queue netif.Backlog // net, or nil if that does not know its backlog
}

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

// Name returns the device's name.
func (d *Device) Name() string { return d.name }

// New makes a device and opens its ports.
func New(cfg Config) (*Device, error) {
	if len(cfg.Addrs) == 0 || len(cfg.Addrs) >= gidTableLen {
		return nil, fmt.Errorf("device %s: %d addresses", cfg.Name, len(cfg.Addrs))
	}
	d := &Device{
		name: cfg.Name, nodeGUID: cfg.NodeGUID, sysGUID: cfg.SysImageGUID, udpPort: cfg.Port, mtu: cfg.MTU,
		start: time.Now(),
	}
	if d.udpPort == 0 {
		d.udpPort = roce.Port
	}
	if d.nodeGUID == (verbs.GUID{}) {
		d.nodeGUID = guidOf(cfg.Addrs[0])
	}
	if d.sysGUID == (verbs.GUID{}) {
		d.sysGUID = d.nodeGUID
	}
	d.batches.New = func() any { return newBatch() }
	d.packets.New = func() any { return new(packet) }
	for _, a := range cfg.Addrs {
		if err := d.open(cfg.Network, a); err != nil {
			d.closePorts()
			return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
		}
	}
	if ll := linkLocal(d.nodeGUID); d.portOf(ll) == nil && slices.ContainsFunc(cfg.Addrs, func(a netip.Addr) bool { return !a.Unmap().Is4() }) {
		d.open(cfg.Network, ll) // not all networks have it
	}
	if err := d.setMTU(); err != nil {
		d.closePorts()
		return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
	}
	d.timers.init()
	d.mads.init()
	d.workers.Go(d.worker)
	d.workers.Go(d.mads.serve)
	for _, p := range d.ports {
		r := newReceiver(d, p)
		p.net.Start(r.receive)
	}
	return d, nil
}

// open adds a port.
func (d *Device) open(n netif.Network, addr netip.Addr) error {
	addr = addr.Unmap()
	if d.portOf(addr.WithZone("")) != nil {
		return fmt.Errorf("address %v is given twice", addr)
	}
	np, err := n.Open(netip.AddrPortFrom(addr, d.udpPort))
	if err != nil {
		return err
	}
	queue, _ := np.(netif.Backlog)
	d.ports = append(d.ports, &port{index: len(d.ports), addr: addr.WithZone(""), local: np.Addr(), net: np, queue: queue})
	return nil
}

func (d *Device) closePorts() {
	for _, p := range d.ports {
		p.net.Close()
	}
}

// setMTU checks the active MTU, or selects the largest that all ports carry, as rxe's
// eth_mtu_int_to_enum.
func (d *Device) setMTU() error {
	const headers = 40 + 8 + roce.BTHSize + roce.RETHSize + roce.ImmDtSize + roce.ICRCSize // IPv6, UDP, WRITE
	largest := verbs.MTU(5)
	for _, p := range d.ports {
		for largest > 1 && p.net.MTU() < largest.Bytes()+headers {
			largest--
		}
	}
	switch {
	case d.mtu == 0:
		d.mtu = largest
	case d.mtu.Bytes() == 0 || d.mtu > largest:
		return fmt.Errorf("MTU %v is larger than that of the network, %v", d.mtu, largest)
	}
	return nil
}

// portOf returns the port with an address, or nil.
func (d *Device) portOf(addr netip.Addr) *port {
	for _, p := range d.ports {
		if p.addr == addr {
			return p
		}
	}
	return nil
}

// guidOf makes a GUID of an address. It has the bit of locally administered addresses.
func guidOf(addr netip.Addr) verbs.GUID {
	b := addr.Unmap().As16()
	sum := sha256.Sum256(b[:])
	g := verbs.GUID(sum[:8])
	g[0] = g[0]&^3 | 2
	g[3], g[4] = 0xff, 0xfe
	return g
}

// linkLocal returns the address with a GUID as interface identifier.
func linkLocal(g verbs.GUID) netip.Addr {
	b := [16]byte{0: 0xfe, 1: 0x80}
	copy(b[8:], g[:])
	return netip.AddrFrom16(b)
}

// now returns the time since the device was made.
func (d *Device) now() time.Duration { return time.Since(d.start) }

// usable returns the error for operations on a device that is gone.
func (d *Device) usable() error {
	if deviceState(d.state.Load()) != deviceActive {
		return unix.ENODEV
	}
	return nil
}

// OnEvent sets the function that is called for events of the device and its port. Nil
// sets none.
func (d *Device) OnEvent(f func(verbs.AsyncEventType)) {
	if f == nil {
		d.event.Store(nil)
		return
	}
	d.event.Store(&f)
}

func (d *Device) report(t verbs.AsyncEventType) {
	if f := d.event.Load(); f != nil {
		(*f)(t)
	}
}

// Remove removes the device, as when the hardware is unplugged: every QP is moved to the
// error state, where its work requests are flushed, [verbs.EventDeviceFatal] is reported,
// and the ports are closed. Objects may be destroyed later; anything else fails with ENODEV.
func (d *Device) Remove() {
	d.closed.Lock()
	defer d.closed.Unlock()
	if !d.state.CompareAndSwap(uint32(deviceActive), uint32(deviceRemoved)) {
		return
	}
	for _, qp := range d.qps.all() {
		qp.fail()
	}
	d.drain(drainWork)
	d.counters.add(linkDowned, 1)
	d.report(verbs.EventPortErr)
	d.report(verbs.EventDeviceFatal)
	d.closePorts()
}

// Close ends the device. No goroutine of it runs when Close has returned. It must not be
// called from a callback. It may be called again.
func (d *Device) Close() error {
	d.closed.Lock()
	defer d.closed.Unlock()
	switch deviceState(d.state.Swap(uint32(deviceClosed))) {
	case deviceClosed:
		return nil
	case deviceActive:
		for _, qp := range d.qps.all() {
			qp.fail()
		}
		d.closePorts()
	}
	d.timers.close()
	d.mads.close()
	d.workers.Wait()
	return nil
}

// worker serves timers, and the work that others have left.
func (d *Device) worker() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wait, ok := d.expire()
		if !ok {
			return
		}
		d.drain(drainWork)
		fire := timer.C
		if wait == forever {
			fire = nil
		} else {
			timer.Reset(wait)
		}
		select {
		case <-fire:
		case <-d.timers.wake:
		}
	}
}
