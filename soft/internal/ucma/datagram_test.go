package ucma

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/internal/roce"
)

// TestDatagrams resolves the datagram QP of a port.
func TestDatagrams(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		l, dst := b.listener(udp, "10.0.0.2:7471")
		c := a.resolved(udp, dst)
		attr, err := c.initQPAttr(verbs.StateInit)
		if err != nil || attr.Qkey != defaultQKey || attr.QpAttrMask != uint32(verbs.MaskState|verbs.MaskPKeyIndex|verbs.MaskPort|verbs.MaskQKey) {
			t.Errorf("%+v, %v", attr, err)
		}
		a.must(c.connect(0x10, "who are you?"))
		s, e := l.request()
		if ud := e.Param.Ud(); ud.PrivateDataLen != roce.SIDRREQPrivateData-roce.CMAHeaderSize || !bytes.HasPrefix(ud.PrivateData[:], []byte("who are you?\x00")) {
			t.Errorf("%+v", ud)
		}
		b.must(s.accept(0x20, "me"))
		ud := c.expect(established, 0).Param.Ud()
		if ud.QpNum != 0x20 || ud.Qkey != defaultQKey || ud.PrivateDataLen != roce.SIDRREPPrivateData || !bytes.HasPrefix(ud.PrivateData[:], []byte("me\x00")) ||
			ud.AhAttr.IsGlobal != 1 || ud.AhAttr.PortNum != 1 || verbs.GID(ud.AhAttr.Grh.Dgid).String() != "::ffff:10.0.0.2" {
			t.Errorf("%+v", ud)
		}
		b.idle()

		c = a.resolved(udp, dst)
		a.must(c.connect(0x10, ""))
		s, _ = l.request()
		b.must(s.reject(0, "no"))
		if ud := c.expect(unreachable, int(roce.SIDRReject)).Param.Ud(); !bytes.HasPrefix(ud.PrivateData[:], []byte("no\x00")) {
			t.Errorf("%+v", ud)
		}
		c = a.resolved(udp, "10.0.0.2:9")
		isErrno(t, "long data", c.connect(0x10, strings.Repeat("x", 181)), syscall.EINVAL)
		a.must(c.connect(0x10, strings.Repeat("x", 180)))
		c.expect(unreachable, int(roce.SIDRUnsupported))
		c = a.resolved(udp, "10.0.0.77:9")
		a.must(c.connect(0x10, ""))
		c.expect(unreachable, -int(syscall.ETIMEDOUT))
	})
}

// TestWrongSpace connects to ports that are used in another port space.
func TestWrongSpace(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		b.listener(tcp, "10.0.0.2:7471")
		c := a.resolved(udp, "10.0.0.2:7471")
		a.must(c.connect(1, ""))
		c.expect(unreachable, int(roce.SIDRUnsupported))
		b.listener(udp, "10.0.0.2:7472")
		c = a.resolved(tcp, "10.0.0.2:7472")
		a.must(c.connect(1, ""))
		c.expect(rejected, int(roce.RejInvalidServiceID))
	})
}

func (i *testID) join(group string, flags uint16) (*testID, error) {
	i.program.uid++
	req := abi.RdmaUcmJoinMcast{Uid: i.program.uid, Id: i.num, JoinFlags: flags}
	req.Addr, req.AddrSize = storage(group)
	r, err := ask[abi.RdmaUcmCreateIdResp](i.program, abi.RDMA_USER_CM_CMD_JOIN_MCAST, &req, &req.Response)
	return &testID{i.program, r.Id, req.Uid, i.space}, err
}

func (i *testID) leave() (uint32, error) {
	req := abi.RdmaUcmDestroyId{Id: i.num}
	r, err := ask[abi.RdmaUcmDestroyIdResp](i.program, abi.RDMA_USER_CM_CMD_LEAVE_MCAST, &req, &req.Response)
	return r.EventsReported, err
}

// TestMulticast joins and leaves groups.
func TestMulticast(t *testing.T) {
	two(t, func(t *testing.T, n *network, a, b *program) {
		c := a.newID(udp)
		_, err := c.join("239.1.2.3:0", 0)
		isErrno(t, "without a device", err, syscall.EINVAL)
		a.must(c.resolve("", "239.1.2.3:0"))
		c.expect(addrResolved, 0)
		for flags := range uint16(2) {
			g, err := c.join("239.1.2.3:0", flags)
			a.must(err)
			ud := g.expect(multicastJoin, 0).Param.Ud()
			if ud.QpNum != 0xffffff || ud.Qkey != defaultQKey || ud.AhAttr.IsGlobal != 1 || ud.AhAttr.PortNum != 1 || ud.AhAttr.Grh.HopLimit != 64 ||
				verbs.GID(ud.AhAttr.Grh.Dgid).String() != "::ffff:239.1.2.3" {
				t.Errorf("%+v", ud)
			}
			if reported, err := g.leave(); err != nil || reported != 1 {
				t.Errorf("%d events, %v", reported, err)
			}
			_, err = g.leave()
			isErrno(t, "leave again", err, syscall.ENOENT)
		}
		g, err := c.join("239.1.2.3:0", 0)
		a.must(err)
		if reported, err := g.leave(); err != nil || reported != 0 { // with the event
			t.Errorf("%d events, %v", reported, err)
		}
		a.idle()
		_, err = c.join("239.1.2.3:0", 2)
		isErrno(t, "flags", err, syscall.EINVAL)
		_, err = c.join("[ff0e::1]:0", 0)
		isErrno(t, "IPv6", err, enotsupp)
		_, err = c.join("0.0.0.0:0", 0)
		isErrno(t, "no group", err, syscall.EINVAL)
		conn := a.resolved(tcp, "10.0.0.2:1")
		_, err = conn.join("239.1.2.3:0", 0)
		isErrno(t, "not for datagrams", err, syscall.EINVAL)
		conn.destroy()
		c.destroy() // leaves
		checkEmpty(t, a.m)
	})
}
