package engine

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/netif"
	"github.com/goverbs/verbs/internal/roce"
)

// Device is a RoCE v2 device.
type Device struct {
	cfg   Config // with the defaults; gids has the addresses
	gids  gidTable
	start time.Time

	state  atomic.Uint32 // a deviceState
	closed sync.Mutex    // serializes changes of GIDs, remove and close
	event  atomic.Pointer[func(verbs.AsyncEventType)]

	objects

	counters   counters
	violations struct{ pkeys, qkeys atomic.Uint32 }

	groups  groups
	work    workQueue
	timers  timers
	mads    mads
	batches sync.Pool // of *batch
	packets sync.Pool // of *packet
	workers sync.WaitGroup
}

type objects struct {
	pds, cqs atomic.Int64 // how many
	mrs      table[MR]
	mws      table[MW]
	ahs      table[AH]
	srqs     table[SRQ]
	qps      table[QP]
	targets  table[Target]
}

type deviceState uint32

const (
	deviceActive deviceState = iota
	deviceRemoved
	deviceClosed
)

// Config describes a device.
type Config struct {
	Name         string
	NodeGUID     verbs.GUID // the zero GUID selects one made of the first address
	SysImageGUID verbs.GUID // the zero GUID selects NodeGUID
	Network      netif.Network
	// Addrs are the addresses of the device: Addrs[i] is entry i of its GID table. If one is IPv6
	// and the network has a port for it, a link-local address made of NodeGUID follows. A device
	// with NodeGUID and MTU may have none before SetGID.
	Addrs []netip.Addr
	// Unusable, if not nil, is called for addresses that cannot be used yet (EADDRNOTAVAIL), as a new
	// IPv6 address must be verified to be unique first, and for those that the GID table has no room
	// for. The device does without them.
	Unusable func(addr netip.Addr, err error)

	Port uint16    // UDP port; 0 selects 4791
	MTU  verbs.MTU // active MTU; 0 selects the largest that all ports carry
	// LIDs makes it an InfiniBand device. Addresses in this prefix stand for LIDs: packets between
	// them have no GRH, others have one in place of the IP header.
	LIDs netip.Prefix
}

// New makes a device and opens its ports.
func New(cfg Config) (*Device, error) {
	later := len(cfg.Addrs) == 0 && cfg.NodeGUID != verbs.GUID{} && cfg.MTU != 0
	const most = gidTableLen - 1 // and a link-local address
	if len(cfg.Addrs) > most && cfg.Unusable != nil {
		for _, a := range cfg.Addrs[most:] {
			cfg.Unusable(a, fmt.Errorf("a device takes %d addresses", most))
		}
		cfg.Addrs = cfg.Addrs[:most]
	}
	if len(cfg.Addrs) == 0 && !later || len(cfg.Addrs) > most {
		return nil, fmt.Errorf("device %s: %d addresses, and a device takes 1 to %d", cfg.Name, len(cfg.Addrs), most)
	}
	d := &Device{cfg: cfg, start: time.Now()}
	d.gids.set(nil)
	d.cfg.Port = cmp.Or(cfg.Port, roce.Port)
	if cfg.NodeGUID == (verbs.GUID{}) {
		d.cfg.NodeGUID = guidOf(cfg.Addrs[0])
	}
	d.cfg.SysImageGUID = cmp.Or(cfg.SysImageGUID, d.cfg.NodeGUID)
	d.batches.New = func() any { return newBatch() }
	d.packets.New = func() any { return new(packet) }
	var unusable error
	for _, a := range cfg.Addrs {
		err := d.open(a)
		if cfg.Unusable != nil && errors.Is(err, syscall.EADDRNOTAVAIL) {
			cfg.Unusable(a, err)
			unusable = err
		} else if err != nil {
			d.gids.close()
			return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
		}
	}
	if len(d.gids.all()) == 0 && !later {
		return nil, fmt.Errorf("device %s: %w", cfg.Name, errors.Join(errors.New("this machine has no usable address"), unusable))
	}
	if ll := linkLocal(d.cfg.NodeGUID); d.gids.of(ll) == nil && slices.ContainsFunc(cfg.Addrs, func(a netip.Addr) bool { return !a.Unmap().Is4() }) {
		d.open(ll) // not all networks have it
	}
	if err := d.setMTU(); err != nil {
		d.gids.close()
		return nil, fmt.Errorf("device %s: %w", cfg.Name, err)
	}
	d.timers.wake = make(chan struct{}, 1)
	d.mads.wait.L = &d.mads.mu
	d.workers.Go(d.worker)
	d.workers.Go(d.mads.serve)
	for _, p := range d.gids.all() {
		p.start(d)
	}
	return d, nil
}

func (d *Device) open(addr netip.Addr) error {
	if d.gids.of(addr.Unmap().WithZone("")) != nil {
		return fmt.Errorf("address %v is given twice", addr)
	}
	p, err := d.openPort(len(d.gids.all()), addr)
	if err == nil {
		d.gids.set(append(d.gids.all(), p))
	}
	return err
}

func (d *Device) openPort(i int, addr netip.Addr) (*port, error) {
	addr = addr.Unmap()
	np, err := d.cfg.Network.Open(netip.AddrPortFrom(addr, d.cfg.Port))
	if err != nil {
		return nil, err
	}
	queue, _ := np.(netif.Backlog)
	drops, ok := np.(netif.Drops)
	if ok {
		drops.OnDrop(func(sent, received int) {
			d.counters.add(sendErrors, sent)
			d.counters.add(rxDrops, received)
		})
	}
	return &port{index: i, addr: addr.WithZone(""), local: np.Addr(), net: np, queue: queue, drops: ok}, nil
}

// SetGID sets entry i of the GID table to an address, or clears it if the address is not valid.
// Several entries may have one address. Users of a removed entry keep sending from its address, and
// fail: QPs retry and fail. SetGID waits until packets that have arrived are handled, so it must
// not be called from a callback.
func (d *Device) SetGID(i int, addr netip.Addr) error {
	d.closed.Lock()
	defer d.closed.Unlock()
	d.groups.changes.Lock()
	defer d.groups.changes.Unlock()
	if err := d.usable(); err != nil {
		return err
	}
	if i < 0 || i >= gidTableLen {
		return syscall.EINVAL
	}
	gids := slices.Clone(d.gids.all())
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
		if same := d.gids.of(addr.WithZone("")); same != nil {
			p := *same
			p.index = i
			gids[i] = &p
		} else {
			p, err := d.openPort(i, addr)
			if err == nil && p.net.MTU() < d.cfg.MTU.Bytes()+maxHeaders {
				p.net.Close()
				err = fmt.Errorf("MTU %v is larger than that of the network", d.cfg.MTU)
			}
			if err == nil {
				if err = d.groups.joinAll(p); err != nil {
					p.net.Close()
				}
			}
			if err != nil {
				return fmt.Errorf("device %s: GID %d: %w", d.cfg.Name, i, err)
			}
			gids[i], fresh = p, true
		}
	}
	d.gids.set(gids)
	if fresh {
		gids[i].start(d)
	}
	if old != nil && !slices.ContainsFunc(gids, func(p *port) bool { return p != nil && p.net == old.net }) {
		old.net.Close()
	}
	return nil
}

// maxHeaders is the size of IPv6, UDP and the headers of a WRITE.
const maxHeaders = 40 + 8 + roce.BTHSize + roce.RETHSize + roce.ImmDtSize + roce.ICRCSize

// setMTU checks the active MTU, or selects the largest that all ports carry, as rxe's
// eth_mtu_int_to_enum.
func (d *Device) setMTU() error {
	largest := verbs.MTU4096
	for _, p := range d.gids.all() {
		for largest > 1 && p.net.MTU() < largest.Bytes()+maxHeaders {
			largest--
		}
	}
	switch {
	case d.cfg.MTU == 0:
		d.cfg.MTU = largest
	case d.cfg.MTU.Bytes() == 0 || d.cfg.MTU > largest:
		return fmt.Errorf("MTU %v is larger than that of the network, %v", d.cfg.MTU, largest)
	}
	return nil
}

func (p *port) start(d *Device) {
	if r, ok := p.net.(netif.Refusals); ok {
		r.OnRefused(d.refused)
	}
	p.net.Start(newReceiver(d, p).receive)
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

func (d *Device) now() time.Duration { return time.Since(d.start) }

func (d *Device) usable() error {
	if deviceState(d.state.Load()) != deviceActive {
		return syscall.ENODEV
	}
	return nil
}

// OnEvent sets the function that is called for events of the device and its port. Nil sets none.
func (d *Device) OnEvent(f func(verbs.AsyncEventType)) { d.event.Store(&f) }

func (d *Device) report(t verbs.AsyncEventType) {
	if f := d.event.Load(); f != nil && *f != nil {
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
	d.drain()
	d.counters.add(linkDowned, 1)
	d.report(verbs.EventPortErr)
	d.report(verbs.EventDeviceFatal)
	d.gids.close()
}

// Close ends the device and waits for its goroutines. It must not be called from a callback. It may
// be called again.
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
		d.gids.close()
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
		d.drain()
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
