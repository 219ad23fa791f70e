package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/demo"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// device checks a device.
func (p *patient) device(ctx context.Context, d rdmadev.Device) {
	about := strings.Join(strings.Fields(fmt.Sprint(d.Protocol, " ", d.Driver, " ", d.PCI.Addr)), ", ")
	p.find(OK, d.Name, about, "")
	for _, err := range d.Errs {
		p.find(Note, d.Name, err.Error(), "")
	}
	active := false
	for _, port := range d.Ports {
		active = p.port(d, port) || active
	}
	u, err := uverbs.Find(d.Name)
	if err != nil {
		p.find(Problem, d.Name, err.Error(), "")
		return
	}
	if d.VerbsNode != "" && !p.node(u.Node, "device "+d.Name) {
		return
	}
	opened, err := u.Open()
	if errors.Is(err, verbs.ErrNoDriver) {
		p.find(Note, d.Name, err.Error(), "programs that use this library cannot open it; others can")
		return
	}
	if err != nil {
		p.find(Problem, d.Name, err.Error(), "")
		return
	}
	opened.Close()
	addrs, err := cm.DeviceAddrs(u)
	if err != nil {
		p.find(Problem, d.Name, "no address of this network namespace leads to it: "+err.Error(), giveAddress(d))
		return
	}
	if !active {
		return // no connection will be made
	}
	found := make([]Finding, len(addrs))
	var connections sync.WaitGroup
	for i, a := range addrs {
		connections.Go(func() { found[i] = connect(ctx, d.Name, a) })
	}
	connections.Wait()
	for _, f := range found {
		if f != (Finding{}) {
			p.findings = append(p.findings, f)
		}
	}
}

// giveAddress returns how a device gets an address that this network namespace has.
func giveAddress(d rdmadev.Device) string {
	for _, port := range d.Ports {
		for _, name := range port.Interfaces {
			if _, err := net.InterfaceByName(name); err == nil {
				return fmt.Sprintf("set its interface up and give it an address: ip link set %s up; ip address add 10.9.0.1/24 dev %s", name, name)
			}
		}
	}
	return "its network interface is not in this network namespace: use the host's namespace, or give the container an interface of the device (SR-IOV, macvlan; docs/deploy.md)"
}

// port checks a port and reports whether it is active.
func (p *patient) port(d rdmadev.Device, port rdmadev.Port) bool {
	subject := fmt.Sprintf("%s, port %d", d.Name, port.Num)
	for _, err := range port.Errs {
		p.find(Note, subject, err.Error(), "")
	}
	if port.State != verbs.PortActive {
		remedy := "check the cable and the other end"
		switch {
		case port.LinkLayer == verbs.LinkEthernet && len(port.Interfaces) > 0:
			remedy = "ip link set " + port.Interfaces[0] + " up; then " + remedy
		case port.State == verbs.PortInit || port.State == verbs.PortArmed:
			remedy = "a subnet manager must activate it: run opensm, or the switch's"
		}
		p.find(Problem, subject, fmt.Sprintf("is %v (%v)", port.State, port.PhysState), remedy)
		return false
	}
	text := fmt.Sprintf("%v, %v", port.State, port.LinkLayer)
	if len(port.Interfaces) > 0 {
		text += ", " + strings.Join(port.Interfaces, ",")
	}
	p.find(OK, subject, text, "")
	if d.Protocol == rdmadev.IWARP { // whose GID is made of a hardware address, and nothing uses it
		return true
	}
	gids, err := port.GIDs()
	switch {
	case err != nil:
		p.find(Note, subject, err.Error(), "")
	case len(gids) == 0:
		remedy := "give its network interface an address"
		if d.Protocol == rdmadev.InfiniBand {
			remedy = "a virtual function needs a GUID from the host"
		}
		p.find(Problem, subject, "has no GID", remedy)
	case d.Protocol == rdmadev.RoCE && !slices.ContainsFunc(gids, func(g rdmadev.GID) bool { return g.Type == verbs.GIDRoCEv2 }):
		p.find(Note, subject, "has no GID for RoCE v2, so connections cannot be routed", "give its network interface an IP address")
	default:
		p.find(OK, subject, fmt.Sprintf("%d GIDs", len(gids)), "")
	}
	return true
}

// connect copies data from an address to itself and back. A firewall does not see that. It finds
// nothing if the examination ends.
func connect(examination context.Context, device string, addr netip.Addr) Finding {
	subject := fmt.Sprintf("%s, %v", device, addr)
	ctx, cancel := context.WithTimeout(examination, 10*time.Second)
	defer cancel()
	start := time.Now()
	if err := demo.Copy(ctx, addr.String()); err != nil {
		if examination.Err() != nil {
			return Finding{}
		}
		if errors.Is(err, syscall.EAFNOSUPPORT) { // erdma's iWARP has no IPv6
			return Finding{Note, subject, "its driver makes no connections with addresses of this family", "use another of its addresses"}
		}
		remedy := ""
		if errors.Is(err, context.DeadlineExceeded) {
			remedy = "check whether a firewall or the interface drops packets to its own address"
		}
		return Finding{Problem, subject, "a connection to itself failed: " + err.Error(), remedy}
	}
	return Finding{OK, subject, fmt.Sprintf("connected to itself, data there and back in %v", time.Since(start).Round(100*time.Microsecond)), ""}
}
