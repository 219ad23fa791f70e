// Package hook makes TCP's listeners and connections on loopback addresses those of package rsock,
// on a device in user space, if SUITES=rdma is in the environment. Package testing imports it in a
// copy of GOROOT.
package hook

import (
	"context"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

func init() {
	if os.Getenv("SUITES") == "rdma" {
		net.HookListen, net.HookDial = listen, dial
	}
}

// transport has the device, with a UDP port of the process's own.
var transport = sync.OnceValue(func() *cm.Transport {
	addrs := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	for i := 0; ; i++ {
		d, err := soft.New(soft.Options{Addrs: addrs, Port: 20000 + (os.Getpid()*7+i)%12000})
		if err == nil {
			return &cm.Transport{Host: d}
		}
		if i == 50 {
			panic(err)
		}
	}
})

// listening has the ports of RDMA. Others are dialed by TCP: not every listener is made by
// ListenConfig.
var listening sync.Map

// loopback returns the network and address for RDMA, if an address of TCP is one of this machine.
func loopback(network, address string) (string, string, uint16, bool) {
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil || network != "tcp" && network != "tcp4" && network != "tcp6" {
		return "", "", 0, false
	}
	switch a, err := netip.ParseAddr(host); {
	case host == "localhost":
		host = "127.0.0.1"
	case host == "" || err == nil && (a.Unmap().IsLoopback() || a.IsUnspecified()):
		if err == nil {
			host = a.Unmap().String()
		}
	default:
		return "", "", 0, false
	}
	return "rdma" + strings.TrimPrefix(network, "tcp"), net.JoinHostPort(host, port), uint16(n), true
}

func listen(ctx context.Context, lc *net.ListenConfig, network, address string) (net.Listener, bool, error) {
	network, address, _, ok := loopback(network, address)
	if !ok {
		return nil, false, nil
	}
	c := rsock.ListenConfig{Transport: transport()}
	c.KeepAlive = lc.KeepAlive
	l, err := c.Listen(ctx, network, address)
	if err != nil {
		return nil, true, err
	}
	listening.Store(netip.MustParseAddrPort(l.Addr().String()).Port(), true)
	return l, true, nil
}

func dial(ctx context.Context, d *net.Dialer, network, address string) (net.Conn, bool, error) {
	network, address, port, ok := loopback(network, address)
	if !ok {
		return nil, false, nil
	}
	if _, ok := listening.Load(port); !ok {
		return nil, false, nil
	}
	c := rsock.Dialer{Transport: transport(), Timeout: -1}
	c.KeepAlive = d.KeepAlive
	if a, ok := d.LocalAddr.(*net.TCPAddr); ok && a != nil {
		c.LocalAddr = a.AddrPort()
	}
	conn, err := c.DialContext(ctx, network, address)
	return conn, true, err
}
