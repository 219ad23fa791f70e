//go:build linux

package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/internal/udp"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/lab/erdma"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Adapter is a value of --nic: a ConnectX, or an erdma.
type Adapter struct {
	ConnectX connectx.Config
	ERDMA    *erdma.Config
}

// Adapters are the values of --nic.
var Adapters = map[string]Adapter{
	"connectx":        {},
	"connectx-pf":     {ConnectX: connectx.Config{PF: true}},
	labdev.InfiniBand: {ConnectX: connectx.Config{InfiniBand: true}},
	"connectx-noguid": {ConnectX: connectx.Config{NoNodeGUID: true}},
	labdev.ERDMA:      {ERDMA: &erdma.Config{}},
	"erdma-roce":      {ERDMA: &erdma.Config{RoCE: true}},
}

// RoCE reports whether the adapter's packets are RoCE v2's of a ConnectX, which other devices answer.
func (a Adapter) RoCE() bool { return a.ERDMA == nil && !a.ConnectX.InfiniBand }

// Wire is what the adapters of a run have in common.
type Wire struct {
	*connectx.Wire
	links *erdma.Links
}

// maxAdapters bounds a machine's adapters: the PCI bus has a port for each.
const maxAdapters = 2

func adapterMAC(i, number int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x15, 0xb3, 0x09, byte(i), byte(number)}
}

// AdapterGUID returns the GUID that adapter i has from its MAC address, as sysfs shows it.
func AdapterGUID(i, number int) string {
	m := adapterMAC(i, number)
	return fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", m[0]^2, m[1], m[2], m[3], m[4], m[5])
}

// machineAdapters describes a machine's adapters to its guest.
func machineAdapters(kinds []string, number int) (all []job.Adapter) {
	for i, kind := range kinds {
		a := job.Adapter{Device: adapterName(kinds, i), GUID: AdapterGUID(i, number)}
		if !Adapters[kind].ConnectX.InfiniBand {
			a.MAC = adapterMAC(i, number).String()
		}
		all = append(all, a)
	}
	return all
}

// adapterName returns the name that the device of adapter i gets.
func adapterName(kinds []string, i int) string { return labdev.Adapters(kinds)[i] }

// links returns the numbers of the adapters that have a network card beside them as their link.
func (o Options) links() (list []int) {
	for i, kind := range o.NICs {
		if Adapters[kind].ERDMA != nil {
			list = append(list, i)
		}
	}
	return list
}

// adapterArgs returns the arguments for QEMU by which adapters can be plugged in: memory that another
// process can map, and ports of the PCI bus. Adapters are plugged in when the machine runs, because
// they cannot be saved in its state.
func adapterArgs(o Options) []string {
	if len(o.NICs) == 0 {
		return nil
	}
	args := []string{
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", o.Mem), "-machine", "memory-backend=mem",
	}
	if o.net == nil { // otherwise they are on the wires between machines
		for _, i := range o.links() { // without a peer, to which their packets would wait to be sent
			args = append(args, "-device", fmt.Sprintf("virtio-net-pci,mac=%s,speed=100000,duplex=full,romfile=", adapterMAC(i, max(o.number, 1))))
		}
	}
	for i := range maxAdapters {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=slot%d,chassis=%d,slot=%d,pref64-reserve=64M", i, i+1, i+1))
	}
	return args
}

// card is an adapter of either kind.
type card interface {
	vfiouser.Device
	Close() error
}

// plan makes an adapter that is attached to a bus.
type plan func(*vfiouser.Bus) (card, error)

// planAdapter returns the plan of adapter i of a machine.
func planAdapter(kinds []string, i, number int, wire *Wire, record *log.Logger) plan {
	name, mac, kind := adapterName(kinds, i), adapterMAC(i, number), Adapters[kinds[i]]
	if kind.ERDMA != nil {
		cfg := *kind.ERDMA
		cfg.Name, cfg.MAC, cfg.Network, cfg.Links = name, mac, wire.Network(nil), wire.links
		if record != nil {
			cfg.Record = func(line string) { record.Print(name, " ", line) }
		}
		return func(bus *vfiouser.Bus) (card, error) { return made(erdma.New(cfg, bus)) }
	}
	cfg := kind.ConnectX
	cfg.Name, cfg.MAC = name, mac
	cfg.Wire, cfg.Network = wire.Wire, wire.Network(mac)
	if cfg.InfiniBand {
		cfg.Network = wire.Network(nil)
	}
	if record != nil {
		cfg.Record = func(e connectx.Event) { record.Print(name, " ", e) }
	}
	return func(bus *vfiouser.Bus) (card, error) { return made(connectx.New(cfg, bus)) }
}

// made returns no card on an error.
func made[C card](c C, err error) (card, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

// ServeSockets serves adapters to any machines until ctx ends, each adapter to one machine at a time.
func ServeSockets(ctx context.Context, sockets string, opt Options) error {
	if sockets == "" {
		return errors.New("nic: no --socket, the path of the socket for QEMU")
	}
	if len(opt.NICs) == 0 {
		opt.NICs = []string{"connectx"}
	}
	record, err := recorder(opt)
	if err != nil {
		return err
	}
	wire, err := NewWire(opt)
	if err != nil {
		return err
	}
	var listeners []net.Listener
	var served sync.WaitGroup
	defer served.Wait()
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	for i, path := range strings.Split(sockets, ",") {
		for len(opt.NICs) <= i {
			opt.NICs = append(opt.NICs, opt.NICs[len(opt.NICs)-1])
		}
		p := planAdapter(opt.NICs, i, i+1, wire, record)
		l, err := listenAdapter(path)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		served.Go(func() {
			for {
				err := serveAdapter(ctx, l, p)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					fmt.Fprintf(os.Stderr, "lab: %s: %v\n", path, err)
				}
			}
		})
		fmt.Fprintf(os.Stderr, `lab: QEMU needs "-object memory-backend-memfd,id=mem,size=...,share=on -machine memory-backend=mem" and
-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":%q}}'`+"\n", path)
	}
	<-ctx.Done()
	return nil
}

// NewWire returns the wire of a run's adapters.
func NewWire(o Options) (*Wire, error) {
	w := &Wire{connectx.NewWire(), erdma.NewLinks()}
	if !o.UDP.IsValid() {
		return w, nil
	}
	// A failure here tells the user more than the guest's later error, that the address is wrong.
	p, err := new(udp.Network).Open(netip.AddrPortFrom(o.UDP, udp.DefaultPort))
	if err != nil {
		return nil, fmt.Errorf("--udp: %w", err)
	}
	w.UseUDP(o.UDP)
	return w, p.Close()
}

// recorder returns the logger of --niclog, or nil.
func recorder(o Options) (*log.Logger, error) {
	if o.NICLog == "" {
		return nil, nil
	}
	f, err := os.OpenFile(o.NICLog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	return log.New(f, "", log.Lmicroseconds), nil
}

// listenAdapter makes a socket for QEMU. It replaces a socket that nobody serves, and no other file.
func listenAdapter(path string) (*net.UnixListener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&fs.ModeSocket == 0 {
			return nil, fmt.Errorf("--socket %s: there is a file that is no socket", path)
		}
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, fmt.Errorf("--socket %s: another process serves it", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// serveAdapter serves an adapter to the next machine that connects, until the machine or ctx ends.
func serveAdapter(ctx context.Context, l *net.UnixListener, p plan) error {
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var d card
	err = vfiouser.Serve(conn, func(bus *vfiouser.Bus) (vfiouser.Device, error) {
		d, err = p(bus)
		return d, err
	})
	if d != nil {
		err = errors.Join(err, d.Close())
	}
	return err
}

// ParseAdapters returns the adapters that --nic names.
func ParseAdapters(list string) (names []string, err error) {
	if list == "" {
		return nil, nil
	}
	names = strings.Split(list, ",")
	for _, n := range names {
		if _, ok := Adapters[n]; !ok {
			return nil, fmt.Errorf("--nic %s: not one of connectx, connectx-pf, connectx-ib, connectx-noguid, erdma, erdma-roce", n)
		}
	}
	if len(names) > maxAdapters {
		return nil, fmt.Errorf("--nic %s: a machine has at most %d", list, maxAdapters)
	}
	return names, nil
}
