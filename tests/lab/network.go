package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"
)

// What every test finds: rxe0 on v0, which is one end of a veth pair, and
// these addresses on it.
const (
	rxeName = "rxe0"
	rxeLink = "v0"
	rxePeer = "v1"
	rxeIPv4 = "10.9.0.1/24"
	rxeIPv6 = "fd00:9::1/64"
)

func setupNetwork() error {
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	for _, m := range []string{"crc32_generic", "ib_uverbs", "rdma_ucm", "rdma_rxe", "veth"} {
		out, err := exec.Command("modprobe", m).CombinedOutput()
		if err != nil && m != "crc32_generic" { // built in, or gone, on newer kernels
			return fmt.Errorf("modprobe %s: %w: %s", m, err, out)
		}
	}
	if err := linkUp("lo"); err != nil {
		return err
	}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: rxeLink, MTU: 1500}, PeerName: rxePeer}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("add veth: %w", err)
	}
	// Duplicate address detection would keep the IPv6 address, and its GID,
	// away for a second.
	os.WriteFile("/proc/sys/net/ipv6/conf/"+rxeLink+"/accept_dad", []byte("0"), 0o644)
	for _, l := range []string{rxePeer, rxeLink} {
		if err := linkUp(l); err != nil {
			return err
		}
	}
	link, err := netlink.LinkByName(rxeLink)
	if err != nil {
		return err
	}
	for _, a := range []string{rxeIPv4, rxeIPv6} {
		ip, ipnet, err := net.ParseCIDR(a)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: ipnet.Mask}}); err != nil {
			return fmt.Errorf("add %s to %s: %w", a, rxeLink, err)
		}
	}
	if err := netlink.RdmaLinkAdd(rxeName, "rxe", rxeLink); err != nil {
		return fmt.Errorf("add %s: %w", rxeName, err)
	}
	return waitActive(rxeName)
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
	want := []string{"/dev/infiniband/uverbs0", "/dev/infiniband/rdma_cm"}
	var state []byte
	for range 250 {
		missing := false
		for _, f := range want {
			if _, err := os.Stat(f); err != nil {
				missing = true
			}
		}
		state, _ = os.ReadFile("/sys/class/infiniband/" + device + "/ports/1/state")
		if !missing && string(state) == "4: ACTIVE\n" {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("%s is not ready: port %q, want ACTIVE and %v", device, state, want)
}
