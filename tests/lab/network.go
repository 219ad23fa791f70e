package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
)

// device is what every program finds. Its link is made by link.
type device struct {
	name, kind string
	link       netlink.Link
	addrs      []string
}

var devices = []device{
	{"rxe0", "rxe", &netlink.Veth{LinkAttrs: linkAttrs("v0"), PeerName: "v1"}, []string{"10.9.0.1/24", "fd00:9::1/64"}},
	{"siw0", "siw", &netlink.Dummy{LinkAttrs: linkAttrs("d0")}, []string{"10.9.1.1/24", "fd00:9:1::1/64"}},
}

func linkAttrs(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name, a.MTU = name, 1500
	return a
}

// devicesOf are those of one of two machines, on wires that are there.
func devicesOf(host int) ([]device, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	for i, name := range wires {
		at := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().HardwareAddr.String() == mac(i, host) })
		if at < 0 {
			return nil, fmt.Errorf("no network card for %s", name)
		}
		if err := netlink.LinkSetName(links[at], name); err != nil {
			return nil, err
		}
	}
	if err := configure(controlWire, []string{fmt.Sprintf("10.9.9.%d/24", host)}); err != nil {
		return nil, err
	}
	var all []device
	for i, d := range devices {
		// As in the table, with this host's number in place of 1.
		d.link, d.addrs = &netlink.Device{LinkAttrs: linkAttrs(wires[i])}, slices.Clone(d.addrs)
		for j, a := range d.addrs {
			d.addrs[j] = strings.Replace(a, "1/", fmt.Sprintf("%d/", host), 1)
		}
		all = append(all, d)
	}
	return all, nil
}

func setupNetwork(modules bool, host int) error {
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	if !modules {
		// All is built in.
	} else if out, err := exec.Command("modprobe", "-a", "ib_uverbs", "rdma_ucm", "rdma_rxe", "siw", "veth", "dummy").CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe: %w: %s", err, out)
	}
	exec.Command("modprobe", "udmabuf").Run() // for those who want DMA buffers
	found := devices
	if host != 0 {
		if out, err := exec.Command("modprobe", "virtio_net").CombinedOutput(); err != nil {
			return fmt.Errorf("modprobe: %w: %s", err, out)
		}
		var err error
		if found, err = devicesOf(host); err != nil {
			return err
		}
	} else if err := addLinks(); err != nil {
		return err
	}
	for _, d := range found {
		link := d.link.Attrs().Name
		if err := configure(link, d.addrs); err != nil {
			return err
		}
		if err := netlink.RdmaLinkAdd(d.name, d.kind, link); err != nil {
			return fmt.Errorf("add %s: %w", d.name, err)
		}
		if err := waitActive(d.name); err != nil {
			return err
		}
	}
	return nil
}

// addLinks makes the devices' links where there are no wires.
func addLinks() error {
	for _, d := range devices {
		if err := netlink.LinkAdd(d.link); err != nil {
			return fmt.Errorf("add %s: %w", d.link.Attrs().Name, err)
		}
	}
	return linkUp("v1") // or v0 has no carrier
}

func configure(link string, addrs []string) error {
	// Duplicate address detection would keep the IPv6 address, and its GID,
	// away for a second.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+link+"/accept_dad", []byte("0"), 0o644); err != nil {
		return err
	}
	if err := linkUp(link); err != nil {
		return err
	}
	l, err := netlink.LinkByName(link)
	if err != nil {
		return err
	}
	for _, s := range addrs {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			return fmt.Errorf("add %s to %s: %w", s, link, err)
		}
	}
	return nil
}

func linkUp(name string) error {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s: %w", name, err)
	}
	return netlink.LinkSetUp(l)
}

// waitActive waits for the device's nodes and for its port.
func waitActive(device string) error {
	var state, node string
	for range 250 {
		b, _ := os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
		state, node = strings.TrimSpace(string(b)), uverbs(device)
		if state == "4: ACTIVE" && exist(node, "/dev/infiniband/rdma_cm") {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s is not ready: port %q, node %q", device, state, node)
}

// uverbs names a device's node, once there is one.
func uverbs(device string) string {
	files, _ := filepath.Glob("/sys/class/infiniband_verbs/uverbs*/ibdev")
	for _, f := range files {
		if b, _ := os.ReadFile(f); strings.TrimSpace(string(b)) == device {
			return "/dev/infiniband/" + filepath.Base(filepath.Dir(f))
		}
	}
	return ""
}

func exist(files ...string) bool {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return false
		}
	}
	return true
}
