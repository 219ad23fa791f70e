package ucma

import (
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// TestPorts binds and listens where other IDs are bound or listen.
func TestPorts(t *testing.T) {
	type bound struct {
		addr          string
		space         uint16
		reuse, afOnly bool
		listen        bool
	}
	for _, test := range []struct {
		name        string
		first       bound
		second      bound
		bind        syscall.Errno // of the second
		listenErrno syscall.Errno
	}{
		{"other port", bound{addr: "10.0.0.1:1"}, bound{addr: "10.0.0.1:2"}, 0, 0},
		{"same port", bound{addr: "10.0.0.1:1"}, bound{addr: "10.0.0.1:1"}, syscall.EADDRINUSE, 0},
		{"other space", bound{addr: "10.0.0.1:1"}, bound{addr: "10.0.0.1:1", space: udp}, 0, 0},
		{"other address", bound{addr: "10.0.0.1:1"}, bound{addr: "10.0.0.2:1"}, 0, 0},
		{"other family", bound{addr: "10.0.0.1:1"}, bound{addr: "[fd00::1]:1"}, 0, 0},
		{"wildcard second", bound{addr: "10.0.0.1:1"}, bound{addr: "0.0.0.0:1"}, syscall.EADDRNOTAVAIL, 0},
		{"wildcard first", bound{addr: "0.0.0.0:1"}, bound{addr: "10.0.0.1:1"}, syscall.EADDRNOTAVAIL, 0},
		{"two wildcards", bound{addr: "0.0.0.0:1"}, bound{addr: "0.0.0.0:1"}, syscall.EADDRNOTAVAIL, 0},
		{"wildcards of two families", bound{addr: "0.0.0.0:1"}, bound{addr: "[::]:1"}, syscall.EADDRNOTAVAIL, 0},
		{"wildcards of two families, IPv6 only", bound{addr: "0.0.0.0:1"}, bound{addr: "[::]:1", afOnly: true}, 0, 0},
		{"reuse of one", bound{addr: "10.0.0.1:1", reuse: true}, bound{addr: "10.0.0.1:1"}, syscall.EADDRINUSE, 0},
		{"reuse of both", bound{addr: "10.0.0.1:1", reuse: true}, bound{addr: "10.0.0.1:1", reuse: true}, 0, syscall.EADDRINUSE},
		{"reuse of a listener's", bound{addr: "10.0.0.1:1", reuse: true, listen: true}, bound{addr: "10.0.0.1:1", reuse: true}, syscall.EADDRINUSE, 0},
		{"reuse of wildcards", bound{addr: "0.0.0.0:1", reuse: true}, bound{addr: "10.0.0.1:1", reuse: true}, 0, syscall.EADDRNOTAVAIL},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, m := newNetwork(), New(nil)
				n.device(m, 1, "10.0.0.1", "fd00::1")
				n.device(m, 2, "10.0.0.2")
				p := newProgram(t, m)
				bind := func(b bound) (*testID, error) {
					if b.space == 0 {
						b.space = tcp
					}
					i := p.newID(b.space)
					if b.reuse {
						p.must(i.setOption(abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_REUSEADDR, one()))
					}
					if b.afOnly {
						p.must(i.setOption(abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_AFONLY, one()))
					}
					return i, i.bind(b.addr)
				}
				first, err := bind(test.first)
				p.must(err)
				if test.first.listen {
					p.must(first.listen(0))
				}
				second, err := bind(test.second)
				isErrno(t, "bind", err, test.bind)
				if test.bind != 0 {
					first.destroy()
					p.must(second.bind(test.second.addr)) // the port is free now
				}
				isErrno(t, "listen", second.listen(0), test.listenErrno)
				second.destroy()
				if test.bind == 0 {
					first.destroy()
				}
				checkEmpty(t, m)
			})
		})
	}
}

// TestFreePorts binds to port 0, many times.
func TestFreePorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNetwork(), New(nil)
		n.device(m, 1, "10.0.0.1")
		p := newProgram(t, m)
		seen := map[uint16]bool{}
		for k := range 3000 {
			addr := "10.0.0.1:0"
			if k%2 == 0 {
				addr = "0.0.0.0:0"
			}
			i := p.newID(tcp)
			p.must(i.bind(addr))
			src, _, _ := i.addrs()
			if port := src.Port(); port < firstLocalPort || port > lastLocalPort || seen[port] {
				t.Fatalf("port %d again", port)
			}
			seen[src.Port()] = true
		}
		// Connections to different ports share a port if there are no others.
		for port := firstLocalPort; port <= lastLocalPort; port++ {
			if !seen[uint16(port)] {
				i := m.newID(tcp, 2)
				m.lock()
				i.src, i.dst = ipAddr(n.first(), 0), ipAddr(n.first(), 1)
				i.own(uint16(port))
				m.unlock()
			}
		}
		full := p.newID(tcp)
		isErrno(t, "bind", full.bind("10.0.0.1:0"), syscall.EADDRNOTAVAIL)
		isErrno(t, "resolve to the same port", full.resolve("10.0.0.1:0", "10.0.0.1:1"), syscall.EADDRNOTAVAIL)
		p.must(full.resolve("10.0.0.1:0", "10.0.0.1:2"))
	})
}

// TestBindErrors binds where that is impossible.
func TestBindErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork()
		m := New(localRouter)
		n.device(m, 1, "10.0.0.1", "fe80::1")
		p := newProgram(t, m)
		for addr, want := range map[string]syscall.Errno{
			"10.0.0.9:1":  syscall.EADDRNOTAVAIL, // of no interface
			"10.9.9.9:1":  syscall.ENODEV,        // of an interface without a device
			"[fe80::1]:1": syscall.EINVAL,        // without a zone
		} {
			i := p.newID(tcp)
			isErrno(t, addr, i.bind(addr), want)
			p.must(i.bind("10.0.0.1:0")) // the ID can still be bound
			isErrno(t, "bind again", i.bind("10.0.0.1:0"), syscall.EINVAL)
			i.destroy()
		}
		ipoib := p.newID(abi.RDMA_PS_IPOIB)
		isErrno(t, "IPoIB", ipoib.bind("10.0.0.1:1"), syscall.EINVAL)
		p.must(ipoib.bind("0.0.0.0:1"))

		link := p.newID(tcp)
		req := abi.RdmaUcmBind{Id: link.num}
		req.Addr, req.AddrSize = storage("[fe80::1]:77")
		mmap.Bytes(&req.Addr)[24] = 3
		p.must(run(p, abi.RDMA_USER_CM_CMD_BIND, &req))

		bad := p.newID(tcp)
		req = abi.RdmaUcmBind{Id: bad.num}
		req.Addr, req.AddrSize = storage("10.0.0.1:1")
		req.AddrSize++
		isErrno(t, "size", run(p, abi.RDMA_USER_CM_CMD_BIND, &req), syscall.EINVAL)
		req.AddrSize--
		req.Reserved = 1
		isErrno(t, "reserved", run(p, abi.RDMA_USER_CM_CMD_BIND, &req), syscall.EINVAL)
		req.Reserved = 0
		*req.Addr.SsFamily() = 1
		isErrno(t, "family", run(p, abi.RDMA_USER_CM_CMD_BIND, &req), syscall.EINVAL)
	})
}
