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
	network  netif.Network
	lids     netip.Prefix            // of Config
	gids     atomic.Pointer[[]*port] // by index; it does not change; entries may be nil
	start    time.Time

	state  atomic.Uint32 // a deviceState
	closed sync.Mutex    // serializes changes of GIDs, remove and close
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

// port is an address of the device. Several entries of the table of GIDs may share a netif.Port.
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
	// made of NodeGUID follows. A device with NodeGUID and MTU may do without, until SetGID.
	Addrs []netip.Addr
	Port  uint16    // UDP port; 0 selects 4791
	MTU   verbs.MTU // active MTU; 0 selects the largest that all ports carry
	// LIDs makes it a device of InfiniBand. Addresses of this prefix stand for LIDs: packets between
	// them have no GRH, those between others have one in the place of the IP header.
	LIDs netip.Prefix
}

// Name returns the device's name.
func (d *Device) Name() string { return d.name }

// New makes a device and opens its ports.
func New(cfg Config) (*Device, error) {
	later := len(cfg.Addrs) == 0 && cfg.NodeGUID != verbs.GUID{} && cfg.MTU != 0
	if len(cfg.Addrs) == 0 && !later || len(cfg.Addrs) >= gidTableLen {
		return nil, fmt.Errorf("device %s: %d addresses", cfg.Name, len(cfg.Addrs))
	}
	d := &Device{
		name: cfg.Name, nodeGUID: cfg.NodeGUID, sysGUID: cfg.SysImageGUID, udpPort: cfg.Port, mtu: cfg.MTU,
		network: cfg.Network, lids: cfg.LIDs, start: time.Now(),
	}
	d.gids.Store(new([]*port))
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
		if err := d.open(a); err != nil {
			d.closePorts()
			return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
		}
	}
	if ll := linkLocal(d.nodeGUID); d.portOf(ll) == nil && slices.ContainsFunc(cfg.Addrs, func(a netip.Addr) bool { return !a.Unmap().Is4() }) {
		d.open(ll) // not all networks have it
	}
	if err := d.setMTU(); err != nil {
		d.closePorts()
		return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
	}
	d.timers.init()
	d.mads.init()
	d.workers.Go(d.worker)
	d.workers.Go(d.mads.serve)
	for _, p := range *d.gids.Load() {
		p.start(d)
	}
	return d, nil
}

// open adds a port.
func (d *Device) open(addr netip.Addr) error {
	if d.portOf(addr.Unmap().WithZone("")) != nil {
		return fmt.Errorf("address %v is given twice", addr)
	}
	p, err := d.openPort(len(*d.gids.Load()), addr)
	if err == nil {
		gids := append(*d.gids.Load(), p)
		d.gids.Store(&gids)
	}
	return err
}

// openPort opens the port of GID i.
func (d *Device) openPort(i int, addr netip.Addr) (*port, error) {
	addr = addr.Unmap()
	np, err := d.network.Open(netip.AddrPortFrom(addr, d.udpPort))
	if err != nil {
		return nil, err
	}
	queue, _ := np.(netif.Backlog)
	return &port{index: i, addr: addr.WithZone(""), local: np.Addr(), net: np, queue: queue}, nil
}

// SetGID makes entry i of the table of GIDs that of an address, or removes it if the address is not
// valid. Several entries may have an address. What uses an entry when it is removed goes on to send
// from its address, and fails to: QPs retry and fail. SetGID waits until packets that have arrived
// are handled, so it must not be called from a callback.
func (d *Device) SetGID(i int, addr netip.Addr) error {
	d.closed.Lock()
	defer d.closed.Unlock()
	d.groups.changes.Lock()
	defer d.groups.changes.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if i < 0 || i >= gidTableLen {
		return unix.EINVAL
	}
	gids := slices.Clone(*d.gids.Load())
	for len(gids) <= i {
		gids = append(gids, nil)
	}
	old := gids[i]
	gids[i] = nil
	addr = addr.Unmap()
	fresh := false
	if addr.IsValid() {
		if old != nil && old.addr == addr.WithZone("") {
			return nil
		}
		if same := d.portOf(addr.WithZone("")); same != nil {
			p := *same
			p.index = i
			gids[i] = &p
		} else {
			p, err := d.openPort(i, addr)
			if err == nil && p.net.MTU() < d.mtu.Bytes()+maxHeaders {
				p.net.Close()
				err = fmt.Errorf("MTU %v is larger than that of the network", d.mtu)
			}
			if err == nil {
				if err = d.groups.joinAll(p); err != nil {
					p.net.Close()
				}
			}
			if err != nil {
				return fmt.Errorf("device %s: GID %d: %w", d.name, i, err)
			}
			gids[i], fresh = p, true
		}
	}
	d.gids.Store(&gids)
	if fresh {
		gids[i].start(d)
	}
	if old != nil && !slices.ContainsFunc(gids, func(p *port) bool { return p != nil && p.net == old.net }) {
		old.net.Close()
	}
	return nil
}

func (d *Device) closePorts() {
	for _, p := range d.ports() {
		p.net.Close()
	}
}

// ports returns one entry of the table of GIDs for each netif.Port.
func (d *Device) ports() []*port {
	var list []*port
	for _, p := range *d.gids.Load() {
		if p != nil && !slices.ContainsFunc(list, func(q *port) bool { return q.net == p.net }) {
			list = append(list, p)
		}
	}
	return list
}

// maxHeaders is the size of IPv6, UDP and the headers of a WRITE.
const maxHeaders = 40 + 8 + roce.BTHSize + roce.RETHSize + roce.ImmDtSize + roce.ICRCSize

// setMTU checks the active MTU, or selects the largest that all ports carry, as rxe's
// eth_mtu_int_to_enum.
func (d *Device) setMTU() error {
	largest := verbs.MTU(5)
	for _, p := range *d.gids.Load() {
		for largest > 1 && p.net.MTU() < largest.Bytes()+maxHeaders {
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

// start makes the port receive.
func (p *port) start(d *Device) {
	if r, ok := p.net.(netif.Refusals); ok {
		r.OnRefused(d.refused)
	}
	p.net.Start(newReceiver(d, p).receive)
}

// portOf returns the port with an address, or nil.
func (d *Device) portOf(addr netip.Addr) *port {
	for _, p := range *d.gids.Load() {
		if p != nil && p.addr == addr {
			return p
		}
	}
	return nil
}

// port returns the port of GID i, or nil.
func (d *Device) port(i int) *port {
	if gids := *d.gids.Load(); i >= 0 && i < len(gids) {
		return gids[i]
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
