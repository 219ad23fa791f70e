package ucma

import (
	"encoding/binary"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/attr"
	"github.com/goverbs/verbs/mmap"
)

// first returns an address of a device.
func (n *network) first() netip.Addr {
	for a, d := range n.devices {
		if d.guid[7] == 1 {
			return a
		}
	}
	return netip.Addr{}
}

// localRouter is the Router of a machine with the addresses 10.0.0.1 and 10.9.9.9. The host
// 10.0.0.8 does not exist; 192.0.2.0/24 cannot be reached.
func localRouter(dst netip.Addr, _ []netip.Addr) (netip.Addr, error) {
	device, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.9.9.9")
	switch {
	case dst == device || dst == other:
		return dst, nil
	case dst == netip.MustParseAddr("10.0.0.8"):
		return netip.Addr{}, syscall.ETIMEDOUT
	case netip.MustParsePrefix("10.0.0.0/24").Contains(dst):
		return device, nil
	case netip.MustParsePrefix("10.9.9.0/24").Contains(dst):
		return other, nil
	}
	return netip.Addr{}, &net.OpError{Err: syscall.ENETUNREACH}
}

// TestResolve resolves addresses that lead to a device, and others.
func TestResolve(t *testing.T) {
	for _, test := range []struct {
		name, src, dst string
		errno          syscall.Errno
		status         syscall.Errno
	}{
		{"peer", "", "10.0.0.2:1", 0, 0},
		{"from the device", "10.0.0.1:0", "10.0.0.2:1", 0, 0},
		{"from the device, anywhere", "10.0.0.1:0", "192.0.2.1:1", 0, 0},
		{"itself", "", "10.0.0.1:1", 0, 0},
		{"no device", "", "10.9.9.1:1", 0, syscall.ENODEV},
		{"no route", "", "192.0.2.1:1", syscall.ENETUNREACH, 0},
		{"no host", "", "10.0.0.8:1", 0, syscall.ETIMEDOUT},
		{"other family", "10.0.0.1:0", "[fd00::1]:1", syscall.EINVAL, 0},
		{"foreign source", "10.0.0.2:0", "10.0.0.3:1", syscall.EADDRNOTAVAIL, 0},
		{"source without a device", "10.9.9.9:0", "10.0.0.3:1", syscall.ENODEV, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, m := newNetwork(), New(localRouter)
				n.device(m, 1, "10.0.0.1")
				p := newProgram(t, m)
				i := p.newID(tcp)
				start := time.Now()
				err := i.resolve(test.src, test.dst)
				isErrno(t, "resolve", err, test.errno)
				if test.errno != 0 {
					p.idle()
					p.must(i.resolve("", "10.0.0.2:1")) // it can be repeated
					i.expect(addrResolved, 0)
					return
				}
				if test.status != 0 {
					i.expect(addrError, -int(test.status))
					if took := time.Since(start); (test.status == syscall.ETIMEDOUT) != (took >= 2*time.Second) {
						t.Errorf("it took %v", took)
					}
					isErrno(t, "route", i.resolveRoute(), syscall.EINVAL)
					p.must(i.resolve("", "10.0.0.2:1"))
				}
				i.expect(addrResolved, 0)
				src, _, device := i.addrs()
				if src.Addr().String() != "10.0.0.1" || src.Port() == 0 || device != 1 {
					t.Errorf("from %v by device %d", src, device)
				}
				isErrno(t, "resolve again", i.resolve("", test.dst), syscall.EINVAL)
				req := abi.RdmaUcmResolveRoute{Id: i.num}
				isErrno(t, "without a timeout", run(p, abi.RDMA_USER_CM_CMD_RESOLVE_ROUTE, &req), syscall.EINVAL)
				p.must(i.resolveRoute())
				i.expect(routeResolved, 0)
				isErrno(t, "route again", i.resolveRoute(), syscall.EINVAL)
			})
		})
	}
}

// TestDestroyResolving destroys an ID whose address is being resolved: no event comes.
func TestDestroyResolving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNetwork(), New(localRouter)
		n.device(m, 1, "10.0.0.1")
		p := newProgram(t, m)
		i := p.newID(tcp)
		p.must(i.resolve("", "10.0.0.8:1"))
		i.destroy()
		time.Sleep(time.Minute)
		p.idle()
		checkEmpty(t, m)
	})
}

// TestResolveLoopback resolves loopback addresses: they lead to the first device, but have no
// route, unless a device has them.
func TestResolveLoopback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, m := newNetwork(), New(nil)
		p := newProgram(t, m)
		i := p.newID(tcp)
		isErrno(t, "without devices", i.resolve("", "127.0.0.1:1"), syscall.ENODEV)
		n.device(m, 1, "10.0.0.1")
		for _, dst := range []string{"127.0.0.1:1", "[::1]:1", "0.0.0.0:1"} {
			i := p.newID(tcp)
			p.must(i.resolve("", dst))
			i.expect(addrResolved, 0)
			isErrno(t, "route", i.resolveRoute(), syscall.ENODEV)
			i.destroy()
		}

		// A device with a loopback address, and one of another process.
		n.device(m, 2, "127.0.0.2")
		l, _ := p.listener(tcp, "127.0.0.2:7471")
		c := p.resolved(tcp, "127.0.0.2:7471")
		p.must(c.connect(1, ""))
		l.request()
		other := New(nil)
		n.device(other, 3, "127.0.0.3")
		peer := newProgram(t, other)
		l, _ = peer.listener(tcp, "127.0.0.3:7471")
		c = p.resolved(tcp, "127.0.0.3:7471")
		src, _, device := c.addrs()
		if src.Addr().String() != "127.0.0.2" || device != 2 {
			t.Errorf("from %v by device %d", src, device)
		}
		p.must(c.connect(1, ""))
		l.request()
		isErrno(t, "bind to the peer's address", p.newID(tcp).bind("127.0.0.3:1"), syscall.EADDRNOTAVAIL)
	})
}

// TestSystemRoute asks the operating system.
func TestSystemRoute(t *testing.T) {
	one, two, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("192.0.2.1")
	for _, test := range []struct {
		dst     netip.Addr
		devices []netip.Addr
		want    netip.Addr
	}{
		{one, nil, one},
		{netip.MustParseAddr("127.0.0.3"), []netip.Addr{other, one}, one},
		{netip.MustParseAddr("127.0.0.3"), []netip.Addr{other, two}, two},
		{netip.MustParseAddr("127.0.0.3"), []netip.Addr{other}, one},
		{one, []netip.Addr{other, two}, two}, // the device of another process may have it
	} {
		src, err := SystemRoute(test.dst, test.devices)
		if err != nil && runtime.GOOS != "linux" {
			t.Skip("127.0.0.3 is no address here: ", err)
		}
		if err != nil || src != test.want {
			t.Errorf("to %v with %v from %v, %v, want %v", test.dst, test.devices, src, err, test.want)
		}
	}
	if _, err := SystemRoute(netip.MustParseAddr("ff02::1%nosuch0"), nil); err == nil {
		t.Error("a zone that does not exist was taken")
	}
}

// TestNearest finds the source among the devices.
func TestNearest(t *testing.T) {
	var devices []netip.Addr
	for _, a := range []string{"10.0.0.1", "fd00::1", "fe80::1", "10.0.1.1"} {
		devices = append(devices, netip.MustParseAddr(a))
	}
	for dst, want := range map[string]string{
		"10.0.0.77": "10.0.0.1", "10.0.1.77": "10.0.1.1", "239.1.1.1": "10.0.0.1", "fd00::7": "fd00::1", "fe80::7": "fe80::1", "2001::1": "fd00::1",
	} {
		if src, err := nearest(netip.MustParseAddr(dst), devices); err != nil || src.String() != want {
			t.Errorf("to %s from %v, %v", dst, src, err)
		}
	}
	if _, err := nearest(netip.MustParseAddr("10.0.0.1"), nil); err != syscall.ENETUNREACH {
		t.Error(err)
	}
}

// TestQuery compares what the queries return about a route.
func TestQuery(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c := a.newID(tcp)
		a.must(c.setOption(abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_TOS, []byte{0x68}))
		a.must(c.setOption(abi.RDMA_OPTION_ID, abi.RDMA_OPTION_ID_ACK_TIMEOUT, []byte{20}))
		a.must(c.resolve("", "10.0.0.2:7471"))
		c.expect(addrResolved, 0)
		req := abi.RdmaUcmQuery{Id: c.num, Option: abi.RDMA_USER_CM_QUERY_ADDR}
		r, err := ask[abi.RdmaUcmQueryAddrResp](a, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response)
		a.must(err)
		gid := func(addr string) verbs.GID { return netip.MustParseAddr(addr).As16() }
		if r.PortNum != 1 || r.IbdevIndex != 1 {
			t.Errorf("%+v", r)
		}
		if guid := verbs.GUID(mmap.Bytes(&r.NodeGuid)); guid != (verbs.GUID{0: 2, 7: 1}) {
			t.Errorf("GUID %v", guid)
		}
		a.must(c.resolveRoute())
		c.expect(routeResolved, 0)

		type pathResp struct {
			head abi.RdmaUcmQueryPathResp
			path abi.IbPathRecData
		}
		req.Option = abi.RDMA_USER_CM_QUERY_PATH
		p, err := ask[pathResp](a, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response)
		a.must(err)
		record := attr.UnpackPath(mmap.Bytes(&p.path.PathRec))
		if p.head.NumPaths != 1 || p.path.Flags != abi.IB_PATH_GMP|abi.IB_PATH_PRIMARY|abi.IB_PATH_BIDIRECTIONAL ||
			record.SGID != gid("10.0.0.1") || record.DGID != gid("10.0.0.2") || record.TrafficClass != 0x68 || record.HopLimit != 64 ||
			record.MTU != 5 || record.Lifetime != 19 || !record.Reversible || record.MTUSelector != 2 || record.PKey != 0xffff || record.FlowLabel == 0 {
			t.Errorf("%+v, %+v", p, record)
		}
		var again [64]byte
		record.Pack(again[:])
		if again != [64]byte(mmap.Bytes(&p.path.PathRec)) {
			t.Errorf("%x becomes %x", mmap.Bytes(&p.path.PathRec), again)
		}

		req.Option = abi.RDMA_USER_CM_QUERY_GID
		g, err := ask[abi.RdmaUcmQueryAddrResp](a, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response)
		a.must(err)
		src, dst := mmap.Bytes(&g.SrcAddr), mmap.Bytes(&g.DstAddr)
		if verbs.GID(src[8:24]) != gid("10.0.0.1") || verbs.GID(dst[8:24]) != gid("10.0.0.2") || binary.BigEndian.Uint64(dst[24:]) != 0x1060000+7471 {
			t.Errorf("%+v to %+v", src, dst)
		}
		req.Option = 9
		_, err = ask[abi.RdmaUcmQueryAddrResp](a, abi.RDMA_USER_CM_CMD_QUERY, &req, &req.Response)
		isErrno(t, "unknown option", err, syscall.ENOSYS)

		// The path of one ID is set for another.
		other := a.newID(tcp)
		isErrno(t, "without a device", other.setOption(abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, mmap.Bytes(&p.path)), syscall.EINVAL)
		a.must(other.resolve("", "10.0.0.2:7471"))
		other.expect(addrResolved, 0)
		wrong := p.path
		wrong.Flags = 1
		both := append(mmap.Bytes(&wrong), mmap.Bytes(&p.path)...)
		isErrno(t, "no path", other.setOption(abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, nil), syscall.EINVAL)
		isErrno(t, "half a path", other.setOption(abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, both[:100]), syscall.EINVAL)
		isErrno(t, "no primary path", other.setOption(abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, both[:72]), syscall.EINVAL)
		a.must(other.setOption(abi.RDMA_OPTION_IB, abi.RDMA_OPTION_IB_PATH, both))
		other.expect(routeResolved, 0)
		l, _ := b.listener(tcp, "10.0.0.2:7471")
		a.must(other.connect(1, ""))
		s, _ := l.request()
		b.must(s.accept(2, ""))
		other.expect(connectResponse, 0)
		if attr, err := other.initQPAttr(verbs.StateRTR); err != nil || attr.AhAttr.Grh.TrafficClass != 0x68 {
			t.Errorf("%+v, %v", attr, err)
		}
		if attr, err := s.initQPAttr(verbs.StateRTR); err != nil || attr.AhAttr.Grh.TrafficClass != 0x68 {
			t.Errorf("%+v, %v", attr, err)
		}
	})
}

// TestOptions sets options in states and with values that are refused.
func TestOptions(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c, d := a.newID(tcp), a.newID(udp)
		set := func(i *testID, name uint32, value ...byte) error { return i.setOption(abi.RDMA_OPTION_ID, name, value) }
		isErrno(t, "level", c.setOption(7, 0, nil), syscall.ENOSYS)
		isErrno(t, "name", set(c, 7), syscall.ENOSYS)
		isErrno(t, "name of IB", c.setOption(abi.RDMA_OPTION_IB, 7, nil), syscall.ENOSYS)
		isErrno(t, "TOS of 2 bytes", set(c, abi.RDMA_OPTION_ID_TOS, 1, 2), syscall.EINVAL)
		isErrno(t, "reuse of 1 byte", set(c, abi.RDMA_OPTION_ID_REUSEADDR, 1), syscall.EINVAL)
		isErrno(t, "ACK timeout of datagrams", set(d, abi.RDMA_OPTION_ID_ACK_TIMEOUT, 1), syscall.EINVAL)
		a.must(c.bind("10.0.0.1:0"))
		a.must(set(c, abi.RDMA_OPTION_ID_AFONLY, one()...))
		a.must(set(c, abi.RDMA_OPTION_ID_REUSEADDR, one()...))
		isErrno(t, "reuse off", set(c, abi.RDMA_OPTION_ID_REUSEADDR, 0, 0, 0, 0), syscall.EINVAL)
		a.must(c.listen(0))
		isErrno(t, "reuse of a listener", set(c, abi.RDMA_OPTION_ID_REUSEADDR, one()...), syscall.EINVAL)
		isErrno(t, "family of a listener", set(c, abi.RDMA_OPTION_ID_AFONLY, one()...), syscall.EINVAL)
		isErrno(t, "listen again", c.listen(0), syscall.EINVAL)
		isErrno(t, "long value", run(a, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.RdmaUcmSetOption{Id: c.num, Optlen: maxOption + 1}), syscall.EINVAL)
		isErrno(t, "no value", run(a, abi.RDMA_USER_CM_CMD_SET_OPTION, &abi.RdmaUcmSetOption{Id: c.num, Optlen: 1}), syscall.EFAULT)
	})
}
