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
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/vfiouser"
)

// Adapters are the values of --nic.
var Adapters = map[string]connectx.Config{
	"connectx":        {},
	"connectx-pf":     {PF: true},
	"connectx-ib":     {InfiniBand: true},
	"connectx-noguid": {NoNodeGUID: true},
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
		all = append(all, job.Adapter{GUID: AdapterGUID(i, number), InfiniBand: Adapters[kind].InfiniBand})
	}
	return all
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
	for i := range maxAdapters {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=slot%d,chassis=%d,slot=%d,pref64-reserve=64M", i, i+1, i+1))
	}
	return args
}

// adapterConfig returns the configuration of adapter i in a machine.
func adapterConfig(kind string, i, number int, wire *connectx.Wire, record *log.Logger) connectx.Config {
	cfg := Adapters[kind]
	cfg.Name = labdev.Adapter(i)
	cfg.MAC = adapterMAC(i, number)
	cfg.Wire, cfg.Network = wire, wire.Network(cfg.MAC)
	if cfg.InfiniBand {
		cfg.Network = wire.Network(nil)
	}
	if record != nil {
		cfg.Record = func(e connectx.Event) { record.Print(cfg.Name, " ", e) }
	}
	return cfg
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
		cfg := adapterConfig(opt.NICs[min(i, len(opt.NICs)-1)], i, i+1, wire, record)
		l, err := listenAdapter(path)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		served.Go(func() {
			for {
				err := serveAdapter(ctx, l, cfg)
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
func NewWire(o Options) (*connectx.Wire, error) {
	w := connectx.NewWire()
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
func serveAdapter(ctx context.Context, l *net.UnixListener, cfg connectx.Config) error {
	conn, err := l.AcceptUnix()
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var d *connectx.Device
	err = vfiouser.Serve(conn, func(bus *vfiouser.Bus) (vfiouser.Device, error) {
		d, err = connectx.New(cfg, bus)
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
			return nil, fmt.Errorf("--nic %s: not one of connectx, connectx-pf, connectx-ib, connectx-noguid", n)
		}
	}
	if len(names) > maxAdapters {
		return nil, fmt.Errorf("--nic %s: a machine has at most %d", list, maxAdapters)
	}
	return names, nil
}
