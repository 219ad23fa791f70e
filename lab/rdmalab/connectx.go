//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/goverbs/verbs/internal/labtest/labdev"
	"github.com/goverbs/verbs/internal/udp"
	"github.com/goverbs/verbs/lab/connectx"
	"github.com/goverbs/verbs/lab/debian"
	"github.com/goverbs/verbs/lab/vfiouser"
	"github.com/goverbs/verbs/rdmadev"
)

// adapters are the values of --nic.
var adapters = map[string]connectx.Config{
	"connectx":        {},
	"connectx-pf":     {PF: true},
	"connectx-ib":     {InfiniBand: true},
	"connectx-noguid": {NoNodeGUID: true},
}

// maxAdapters bounds a machine's adapters, each of which has a port of the PCI bus.
const maxAdapters = 2

// adapterModules are the drivers of adapters.
var adapterModules = []string{"mlx5_ib"}

func adapterMAC(i, host int) net.HardwareAddr {
	return net.HardwareAddr{0x02, 0x15, 0xb3, 0x09, byte(i), byte(host)}
}

// adapterGUID returns the GUID that adapter i has from its MAC address, as sysfs shows it.
func adapterGUID(i, host int) string {
	m := adapterMAC(i, host)
	return fmt.Sprintf("%02x%02x:%02xff:fe%02x:%02x%02x", m[0]^2, m[1], m[2], m[3], m[4], m[5])
}

// machineAdapters returns what the guest of a machine is told of its adapters.
func machineAdapters(kinds []string, host int) (all []adapter) {
	for i, kind := range kinds {
		all = append(all, adapter{adapterGUID(i, host), adapters[kind].InfiniBand})
	}
	return all
}

// The first QEMU that has vfio-user-pci.
const qemuMajor, qemuMinor = 10, 1

// qemuSuite has a QEMU that is recent enough.
const qemuSuite = "trixie-backports"

var reQEMU = regexp.MustCompile(`version (\d+)\.(\d+)`)

// emulator is a QEMU.
type emulator struct {
	args []string // the program, and what precedes its arguments
	env  []string
}

// findEmulator returns this machine's QEMU for an architecture if that has vfio-user-pci. Otherwise
// it fetches Debian's, which runs with the libraries of its own packages.
func findEmulator(ctx context.Context, on arch) (emulator, error) {
	if path, err := exec.LookPath(on.qemu); err == nil {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if m := reQEMU.FindSubmatch(out); err == nil && m != nil {
			major, _ := strconv.Atoi(string(m[1]))
			minor, _ := strconv.Atoi(string(m[2]))
			if major > qemuMajor || major == qemuMajor && minor >= qemuMinor {
				return emulator{args: []string{path}}, nil
			}
		}
	}
	root := filepath.Join(debian.CacheDir(), "qemu-"+on.name)
	if err := unpackOnce(ctx, debian.Archive{Suite: qemuSuite, Log: os.Stderr}, root, nil, on.pkg); err != nil {
		return emulator{}, fmt.Errorf("fetch QEMU, because this machine has none of version %d.%d or later: %w", qemuMajor, qemuMinor, err)
	}
	usr := func(path string) string { return filepath.Join(root, "usr", path) }
	loaders, _ := filepath.Glob(usr("lib*/ld-linux-*.so.*"))
	libraries, _ := filepath.Glob(usr("lib/*-linux-gnu"))
	if len(loaders) != 1 || len(libraries) != 1 {
		return emulator{}, fmt.Errorf("%s holds no QEMU: remove it", root)
	}
	return emulator{
		args: []string{loaders[0], "--library-path", libraries[0], usr("bin/" + on.qemu), "-L", usr("share/qemu"), "-L", usr("share/seabios")},
		env:  []string{"QEMU_MODULE_DIR=" + usr("lib/no-modules")}, // those of this machine's QEMU do not fit
	}, nil
}

// adapterArgs returns what a machine needs so that adapters can be plugged in: memory that another
// process can map, and ports of the PCI bus. The adapters come when it runs, as they cannot be saved.
func adapterArgs(o options) []string {
	if len(o.nics) == 0 {
		return nil
	}
	args := []string{
		"-object", fmt.Sprintf("memory-backend-memfd,id=mem,size=%dM,share=on", o.mem), "-machine", "memory-backend=mem",
	}
	for i := range maxAdapters {
		args = append(args, "-device", fmt.Sprintf("pcie-root-port,id=slot%d,chassis=%d,slot=%d,pref64-reserve=64M", i, i+1, i+1))
	}
	return args
}

// adapterConfig returns the configuration of adapter i in a machine.
func adapterConfig(kind string, i, host int, wire *connectx.Wire, record *log.Logger) connectx.Config {
	cfg := adapters[kind]
	cfg.Name = labdev.Adapter(i)
	cfg.MAC = adapterMAC(i, host)
	cfg.Wire, cfg.Network = wire, wire.Network(cfg.MAC)
	if cfg.InfiniBand {
		cfg.Network = wire.Network(nil)
	}
	if record != nil {
		cfg.Record = func(e connectx.Event) { record.Print(cfg.Name, " ", e) }
	}
	return cfg
}

// plug serves the machine's adapters and plugs them in.
func (m *machine) plug() error {
	if len(m.opt.nics) == 0 {
		return nil
	}
	q, err := dialQMP(filepath.Join(m.dir, qmpSocket))
	if err != nil {
		return err
	}
	defer q.conn.Close()
	// What is plugged in before QEMU has loaded the state of a machine that it restores would be hidden
	// from the guest by that of the slots.
	if _, err := q.await("query-status", running); err != nil {
		return err
	}
	record, err := recorder(m.opt)
	if err != nil {
		return err
	}
	for i, name := range m.opt.nics {
		cfg := adapterConfig(name, i, max(m.opt.host, 1), m.opt.adapterWire, record)
		path := filepath.Join(m.dir, fmt.Sprintf("nic%d", i))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		m.copiers.Go(func() {
			if err := serveAdapter(context.Background(), l, cfg); err != nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintf(os.Stderr, "lab: %s: %v\n", cfg.Name, err)
			}
		})
		m.copiers.Go(func() { // QEMU may end before it connects
			<-m.gone
			l.Close()
		})
		if _, err := q.do("device_add", map[string]any{
			"driver": "vfio-user-pci", "id": fmt.Sprintf("nic%d", i), "bus": fmt.Sprintf("slot%d", i),
			"socket": map[string]any{"type": "unix", "path": path},
		}); err != nil {
			return err
		}
	}
	return nil
}

// serveSockets serves adapters to machines of somebody else until ctx ends, each to one machine after
// the other.
func serveSockets(ctx context.Context, c config) error {
	if c.socket == "" {
		return errors.New("nic: no --socket, the path of the socket for QEMU")
	}
	if len(c.nics) == 0 {
		c.nics = []string{"connectx"}
	}
	record, err := recorder(c.options)
	if err != nil {
		return err
	}
	wire, err := newWire(c.options)
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
	for i, path := range strings.Split(c.socket, ",") {
		cfg := adapterConfig(c.nics[min(i, len(c.nics)-1)], i, i+1, wire, record)
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

// newWire returns the wire of a run's adapters.
func newWire(o options) (*connectx.Wire, error) {
	w := connectx.NewWire()
	if !o.udp.IsValid() {
		return w, nil
	}
	// The guest would only be told that its address is wrong.
	p, err := new(udp.Network).Open(netip.AddrPortFrom(o.udp, udp.DefaultPort))
	if err != nil {
		return nil, fmt.Errorf("--udp: %w", err)
	}
	w.UseUDP(o.udp)
	return w, p.Close()
}

// recorder returns what writes the file of --niclog, or nil.
func recorder(o options) (*log.Logger, error) {
	if o.niclog == "" {
		return nil, nil
	}
	f, err := os.OpenFile(o.niclog, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o666)
	if err != nil {
		return nil, err
	}
	return log.New(f, "", log.Lmicroseconds), nil
}

// listenAdapter makes a socket for QEMU. It replaces one that a process which was killed has left, and
// no other file.
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

// serveAdapter serves an adapter to the next machine that connects, until that is gone or ctx ends.
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

// parseAdapters returns the adapters that --nic names.
func parseAdapters(list string) (names []string, err error) {
	if list == "" {
		return nil, nil
	}
	names = strings.Split(list, ",")
	for _, n := range names {
		if _, ok := adapters[n]; !ok {
			return nil, fmt.Errorf("--nic %s: not one of connectx, connectx-pf, connectx-ib, connectx-noguid", n)
		}
	}
	if len(names) > maxAdapters {
		return nil, fmt.Errorf("--nic %s: a machine has at most %d", list, maxAdapters)
	}
	return names, nil
}

// addAdapters waits for the adapters in the guest, whose driver has been loaded, names them in their
// order, and configures their links. The first has the address of --udp as well, if there is one, from
// which it reaches all others.
func addAdapters(all []adapter, host int, udp netip.Addr) error {
	links, err := nameAdapters(all)
	if err != nil {
		return err
	}
	for i, a := range all {
		device := labdev.Adapter(i)
		if !a.InfiniBand {
			link, addrs := links[0], addrs(device, host)
			links = links[1:]
			if i == 0 && udp.IsValid() && !strings.HasPrefix(addrs[0], udp.String()+"/") {
				addrs = append(addrs, udp.String()+"/32")
			}
			if err := configure(link, addrs); err != nil {
				return err
			}
			if i == 0 && udp.IsValid() {
				if err := ip("route add default dev " + link + " src " + udp.String()); err != nil {
					return err
				}
			}
		}
		if err := waitActive(device); err != nil {
			return err
		}
	}
	return nil
}

// nameAdapters waits for adapters. The kernel has numbered them and their links in the order in which
// it found them, which may be another: hot-plug has no order. It returns the names of the links.
func nameAdapters(all []adapter) (links []string, err error) {
	var devices []string
	for _, a := range all {
		device, err := waitGUID(a.GUID)
		if err != nil {
			return nil, err
		}
		devices = append(devices, device)
		if !a.InfiniBand {
			link, err := waitFor("/sys/class/infiniband/" + device + "/device/net/*")
			if err != nil {
				return nil, err
			}
			links = append(links, filepath.Base(link))
		}
	}
	err = errors.Join(
		number("mlx5_", devices, func(from, to string) error {
			d, err := rdmadev.Find(from)
			for begun := time.Now(); err == nil && d.Index < 0 && time.Since(begun) < readyLimit; d, err = rdmadev.Find(from) {
				time.Sleep(20 * time.Millisecond) // it is in sysfs before netlink has it (ib_register_device)
			}
			if err != nil {
				return err
			}
			return d.Rename(to)
		}),
		number("eth", links, func(from, to string) error { return ip("link set " + from + " name " + to) }))
	return links, err
}

// number gives names a prefix and a number each. Some may have the name of another.
func number(prefix string, names []string, rename func(from, to string) error) error {
	for _, p := range []string{"new_" + prefix, prefix} {
		for i, from := range names {
			if from == fmt.Sprint(prefix, i) {
				continue
			}
			names[i] = fmt.Sprint(p, i)
			if err := rename(from, names[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// waitGUID waits for a device with a system image GUID, and returns its name. The node GUID may be zero.
func waitGUID(guid string) (string, error) {
	for begun := time.Now(); time.Since(begun) < readyLimit; time.Sleep(20 * time.Millisecond) {
		files, _ := filepath.Glob("/sys/class/infiniband/*/sys_image_guid")
		for _, f := range files {
			if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == guid {
				return filepath.Base(filepath.Dir(f)), nil
			}
		}
	}
	return "", fmt.Errorf("no device with GUID %s appears in %v", guid, readyLimit)
}
