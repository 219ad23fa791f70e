package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/virtual"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/rsock"
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
	if !virtual.IsNode(u.Node) && !p.node(u.Node, "device "+d.Name) {
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
		p.find(Problem, d.Name, "no address of this network namespace leads to it: "+err.Error(),
			"set its interface up and give it an address: ip link set IF up; ip address add 10.9.0.1/24 dev IF")
		return
	}
	if !active {
		return // no connection will be made
	}
	for _, a := range addrs {
		p.connect(ctx, d.Name, a)
	}
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
			remedy = "a subnet manager must activate it: is opensm, or the switch's, running?"
		}
		p.find(Problem, subject, fmt.Sprintf("is %v (%v)", port.State, port.PhysState), remedy)
		return false
	}
	text := fmt.Sprintf("%v, %v", port.State, port.LinkLayer)
	if len(port.Interfaces) > 0 {
		text += ", " + strings.Join(port.Interfaces, ",")
	}
	p.find(OK, subject, text, "")
	gids, err := port.GIDs()
	switch {
	case err != nil:
		p.find(Note, subject, err.Error(), "")
	case len(gids) == 0:
		p.find(Problem, subject, "has no GID", "give its network interface an address; virtual functions need a GUID from the host")
	case d.Protocol == rdmadev.RoCE && !slices.ContainsFunc(gids, func(g rdmadev.GID) bool { return g.Type == verbs.GIDRoCEv2 }):
		p.find(Note, subject, "has no GID for RoCE v2, so connections cannot be routed", "give its network interface an IP address")
	default:
		p.find(OK, subject, fmt.Sprintf("%d GIDs", len(gids)), "")
	}
	return true
}

// connect sends a line from an address to itself and back. A firewall does not see that.
func (p *patient) connect(ctx context.Context, device string, addr netip.Addr) {
	subject := fmt.Sprintf("%s, %v", device, addr)
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	start := time.Now()
	if err := echo(ctx, addr); err != nil {
		remedy := ""
		if errors.Is(err, context.DeadlineExceeded) {
			remedy = "does the interface, its address or a firewall drop what it sends to itself?"
		}
		p.find(Problem, subject, "a connection to itself failed: "+err.Error(), remedy)
		return
	}
	p.find(OK, subject, fmt.Sprintf("connected to itself, data there and back in %v", time.Since(start).Round(100*time.Microsecond)), "")
}

// echo connects to a listener at an address of this machine, sends data there and back.
func echo(ctx context.Context, addr netip.Addr) error {
	l, err := (&rsock.ListenConfig{}).Listen(ctx, "rdma", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			served <- err
			return
		}
		defer c.Close()
		if deadline, ok := ctx.Deadline(); ok {
			c.SetDeadline(deadline)
		}
		_, err = io.Copy(c, c)
		served <- err
	}()
	c, err := (&rsock.Dialer{}).DialContext(ctx, "rdma", l.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		c.SetDeadline(deadline)
	}
	const text = "verbs doctor"
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != text {
		return fmt.Errorf("sent %q, received %q", text, got)
	}
	if err := c.Close(); err != nil {
		return err
	}
	return <-served
}
