package soft

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/engine"
	"github.com/goverbs/verbs/internal/host"
	"github.com/goverbs/verbs/internal/udp"
	"github.com/goverbs/verbs/soft/internal/ibcm"
	"github.com/goverbs/verbs/soft/internal/kernel"
	"github.com/goverbs/verbs/soft/internal/ucma"
)

// Options contains the options of a device. The zero value is a device on all addresses of this
// machine.
type Options struct {
	// Name is the device's name. Empty is the next free "softN".
	Name string
	// Addrs are the device's addresses. None means all of this machine's interfaces, loopback
	// included, at the time of New: the device does not follow later changes. On a Network there
	// must be some.
	Addrs []netip.Addr
	// Port is the UDP port; 0 is 4791, the port of RoCE v2.
	Port int
	// MTU is the largest MTU of packets; 0 is the largest that the addresses' interfaces carry.
	MTU verbs.MTU
	// Network carries the packets; nil is UDP. It is comparable, as a pointer is: devices on the same one reach
	// each other.
	Network Network
	// Host names the machine that the device is part of. Devices of one host share a connection
	// manager: the port numbers of listeners, and the addresses from which programs dial. In a
	// test each end is a host. Devices on different Networks are never part of one host.
	Host string
	// Logger gets what happens to the device; nil logs nothing.
	Logger *slog.Logger
}

// Device is a RoCE v2 device in user space. Its methods may be called by several goroutines.
type Device struct {
	engine *engine.Device
	kernel *kernel.Device
	cm     *ucma.Device
	host   *machine
	node   *host.Device
	log    *slog.Logger

	removable []removable // ports that report their removal

	close sync.Once
	err   error
}

// New makes a device. It must be closed.
func New(o Options) (*Device, error) {
	d, err := newDevice(o)
	if err != nil {
		return nil, &verbs.Error{Op: "make", Object: "device in user space", Device: o.Name, Err: err}
	}
	return d, nil
}

func newDevice(o Options) (*Device, error) {
	if o.Port < 0 || o.Port > math.MaxUint16 {
		return nil, fmt.Errorf("UDP port %d: %w", o.Port, verbs.ErrRange)
	}
	if o.Network != nil && !reflect.ValueOf(o.Network).Comparable() { // hosts are found by it
		return nil, fmt.Errorf("a Network of type %T cannot be compared, use a pointer to one: %w", o.Network, syscall.EINVAL)
	}
	d := &Device{log: o.Logger}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.node = &host.Device{Name: o.Name, Open: d.open, Counters: d.Stats}
	if err := host.Reserve(d.node); err != nil {
		return nil, err
	}
	if err := d.makeEngine(&o); err != nil {
		host.Unregister(d.node)
		return nil, err
	}
	d.kernel = kernel.NewDevice(d.engine)
	d.node.Attrs = d.attrs()
	for _, g := range d.kernel.GIDs() {
		d.node.Addrs = append(d.node.Addrs, addrOf(g))
	}
	d.host = joinHost(hostKey{o.Network, o.Host})
	d.cm = d.host.manager.AddDevice(d.engine, d.node.Index)
	d.engine.OnMAD(func(m *engine.MAD) {
		d.cm.Receive(ibcm.Source{GIDIndex: m.GIDIndex, Addr: m.Src, TrafficClass: m.TrafficClass}, m.Data)
	})
	d.engine.OnRefused(d.cm.Refused)
	d.node.Objects = func(table int) [][]byte {
		if table == abi.RDMA_NLDEV_ATTR_RES_CM_ID {
			return d.cm.Objects()
		}
		return d.kernel.Objects(table)
	}
	host.Register(d.node)
	d.log.Info("device added", "device", d.node.Name, "addresses", d.node.Addrs)
	for _, p := range d.removable {
		p.OnRemove(func() { d.Close() })
	}
	return d, nil
}

// attrs returns the device's attributes as sysfs would have them. They are constant, as rxe's:
// rxe's ABI, and a link of one lane.
func (d *Device) attrs() map[string]string {
	a, port := d.engine.Attr(), d.engine.PortAttr()
	attrs := map[string]string{
		"ibdev": d.node.Name, "abi_version": "2", "node_type": "1: CA", "node_guid": a.NodeGUID.String(),
		"sys_image_guid": a.SysImageGUID.String(), "node_desc": "RoCE v2 in user space", "driver": "soft",
		"fw_ver": strconv.FormatUint(a.FirmwareVersion, 10), "ports/1/state": "4: ACTIVE", "ports/1/phys_state": "5: LinkUp",
		"ports/1/link_layer": "Ethernet", "ports/1/rate": "2.5 Gb/sec (1X SDR)", "ports/1/pkeys/0": "0xffff",
		"ports/1/cap_mask": fmt.Sprintf("%#x", port.CapFlags),
	}
	for _, g := range d.kernel.GIDs() {
		index := strconv.Itoa(g.Index)
		attrs["ports/1/gids/"+index], attrs["ports/1/gid_attrs/types/"+index] = g.GID.String(), "RoCE v2"
		if ifi, err := net.InterfaceByIndex(g.Interface); err == nil {
			attrs["ports/1/gid_attrs/ndevs/"+index] = ifi.Name
		}
	}
	return attrs
}

// addrOf returns the address of a GID, with a zone if it is link-local.
func addrOf(g verbs.GIDEntry) netip.Addr {
	addr := g.GID.Addr()
	if addr.Is6() && addr.IsLinkLocalUnicast() {
		if ifi, err := net.InterfaceByIndex(g.Interface); err == nil {
			return addr.WithZone(ifi.Name)
		}
	}
	return addr
}

// randomGUID returns a GUID that no other device has. On other networks than UDP, GUIDs are made of
// addresses, so that tests can be repeated.
func randomGUID() (g verbs.GUID) {
	rand.Read(g[:])
	g[0] = g[0]&^3 | 2 // not an address that IEEE has assigned
	return g
}

func (d *Device) open() (host.File, syscall.Errno) { return d.kernel.Open() }

func (d *Device) makeEngine(o *Options) (err error) {
	cfg := engine.Config{Name: d.node.Name, Network: &watchedNetwork{o.Network, d}, Addrs: o.Addrs, Port: uint16(o.Port), MTU: o.MTU}
	if o.Network == nil {
		cfg.Network, cfg.NodeGUID = new(udp.Network), randomGUID()
		if cfg.Port == 0 {
			cfg.Port = udp.DefaultPort
		}
	}
	if len(cfg.Addrs) == 0 {
		if o.Network != nil {
			return errors.New("a device on a network needs addresses")
		}
		if cfg.Addrs, err = hostAddrs(); err != nil {
			return err
		}
		cfg.Unusable = func(addr netip.Addr, err error) {
			d.log.Warn("address left out", "device", d.node.Name, "address", addr, "err", err)
		}
	}
	d.engine, err = engine.New(cfg)
	return err
}

// Name returns the device's name, as in uverbs.Device.
func (d *Device) Name() string { return d.node.Name }

// Addrs returns the device's addresses.
func (d *Device) Addrs() []netip.Addr { return slices.Clone(d.node.Addrs) }

// CM returns the node of the device's connection manager, for which the device is the Host of a
// cm.Transport.
func (d *Device) CM() string { return d.host.node }

// Stats returns the device's counters by rxe's names: "sent_pkts", "rcvd_pkts" and others; and
// counters of dropped packets: "out_of_buffer", packets that found no receive, or a full queue of
// the device; "rx_drops", packets for which the socket had no room; "listen_drops", connection
// requests beyond the 1,024 that the program's connection manager has not read, which the peer
// repeats. It may be called after Close.
func (d *Device) Stats() map[string]uint64 {
	values := map[string]uint64{}
	for _, c := range d.engine.Counters() {
		values[c.Name] = c.Value
	}
	values["listen_drops"] = d.cm.NoRoom()
	return values
}

// Resources returns the numbers of objects that the program has on the device, by the names of
// rdma-resource(8): "ctx", "pd", "cq", "qp", "mr", "srq", and also "mw" and "ah". A test that
// compares them before and after finds objects that were not closed.
func (d *Device) Resources() map[string]int { return d.kernel.Resources() }

// Close closes the device, see the package's documentation for open contexts and connections.
// When it has returned, the device accesses no memory of the program. It may be called again.
func (d *Device) Close() error {
	if d == nil {
		return verbs.ErrClosed
	}
	d.close.Do(func() {
		host.Unregister(d.node)
		d.cm.Remove()
		d.kernel.Remove()
		d.host.leave()
		if err := d.engine.Close(); err != nil {
			d.err = &verbs.Error{Op: "close", Device: d.node.Name, Err: err}
		}
		d.log.Info("device removed", "device", d.node.Name)
	})
	return d.err
}
