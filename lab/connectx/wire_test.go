//go:build linux

package connectx

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/lab/connectx/internal/ifc"
	"github.com/goverbs/verbs/lab/connectx/internal/wire"
)

// onWire makes the engine's packets go by a wire.
func onWire(w *Wire) func(*Config) {
	return func(cfg *Config) { cfg.Wire, cfg.Network = w, w.Network(cfg.MAC) }
}

// frame sends a frame from memory as it is.
func (n *netdev) frame(f []byte) {
	n.m.t.Helper()
	if n.page == 0 {
		n.page = n.m.alloc(pageBytes).addr[0]
	}
	copy(n.m.bytes(n.page, len(f)), f)
	n.sendCQ.expect(cqeRequest, n.send(ifc.OpcodeSend, ethSeg(0, 0, nil, 0), seg(len(f), n.key, n.page)), 0)
}

// TestForeignRoCE exchanges packets with a RoCE device that is no adapter: a host behind the
// network link of one, as rxe is on a bridge.
func TestForeignRoCE(t *testing.T) {
	for _, tt := range []struct{ name, host, own string }{{"IPv4", "10.0.0.77", "10.0.0.1"}, {"IPv6", "fd00::77", "fd00::1"}} {
		t.Run(tt.name, func(t *testing.T) {
			w := NewWire()
			m := newMachine(t, newHub(), 1, onWire(w))
			n := newMachine(t, newHub(), 2, onWire(w)).newNetdev()
			hostMAC := []byte{6, 7, 8, 9, 10, 11}
			host, own := netip.MustParseAddr(tt.host), netip.MustParseAddr(tt.own)
			m.setAddress(0, own)
			x := m.createQP(ifc.QpTypeRc, m.createCQ(6, 64), m.createCQ(6, 64))
			x.connect(0x4321, host)

			// fromHost returns the frame of a packet from the host, whose identification is not
			// that of the adapter.
			id := uint16(0x1234)
			fromHost := func(port uint16, data []byte) []byte {
				ip := slices.Concat([]byte{0x08, 0x00, 0x45, 2, 0, byte(28 + len(data)), byte(id >> 8), byte(id), 0x40, 0, 64, 17, 0, 0}, host.AsSlice(), own.AsSlice())
				if host.Is6() {
					ip = slices.Concat([]byte{0x86, 0xdd, 0x60, 0x20, 0, 0, 0, byte(8 + len(data)), 17, 64}, host.AsSlice(), own.AsSlice())
				}
				udp := be.AppendUint16(be.AppendUint16(nil, port), roce.Port)
				udp = append(udp, 0, byte(8+len(data)), 0, 0)
				return slices.Concat([]byte{2, 0, 0, 0, 0, 1}, hostMAC, ip, udp, data)
			}
			n.frame(fromHost(roce.Port, []byte("no RoCE packet, of which the wire learns where the host is")))
			data := m.alloc(pageBytes)
			fillPattern(data.at(0, 100), 3)
			x.post(ifc.OpcodeSend, update, 0, seg(100, m.key, data.addr[0]))
			got, e := n.receive()
			if e[28] != 7 {
				t.Errorf("checksums of the frame: %#x, want 7", e[28])
			}
			if want := slices.Concat(hostMAC, []byte{2, 0, 0, 0, 0, 1}); !bytes.Equal(got[:12], want) {
				t.Errorf("addresses % x, want % x", got[:12], want)
			}
			h := wire.Parse(got)
			src, dst := h.Addrs(got)
			if src != own || dst != host {
				t.Fatalf("from %v to %v", src, dst)
			}
			flow, _ := roce.NewFlow(netip.AddrPortFrom(src, be.Uint16(got[h.L4:])), netip.AddrPortFrom(dst, be.Uint16(got[h.L4+2:])))
			var p roce.Packet
			if err := p.Decode(got[h.L4+8 : h.End]); err != nil || !flow.Verify(got[h.L4+8:h.End], 0) {
				t.Fatalf("not the RoCE packet: %v", err)
			}
			if p.Opcode != roce.RCSendOnly || p.DestQP != 0x4321 || !bytes.Equal(p.Payload, data.at(0, 100)) {
				t.Errorf("%+v", p)
			}

			ack := roce.Packet{Opcode: roce.RCAcknowledge, PKey: roce.DefaultPKey, DestQP: x.num, PSN: p.PSN, AETH: roce.AETH{Syndrome: 31, MSN: 1}}
			flow, _ = roce.NewFlow(netip.AddrPortFrom(host, 0xc123), netip.AddrPortFrom(own, roce.Port))
			n.frame(fromHost(0xc123, flow.AppendICRC(ack.Append(nil), id)))
			x.send.expect(cqeRequest, 0, 0)
		})
	}
}

// TestUDPWire connects adapters of two wires by UDP alone.
func TestUDPWire(t *testing.T) {
	addrs := [2]netip.Addr{netip.MustParseAddr("127.79.1.1"), netip.MustParseAddr("127.79.1.2")}
	var m [2]*machine
	for i, a := range addrs {
		w := NewWire()
		w.UseUDP(a)
		p, err := w.Network(nil).Open(netip.AddrPortFrom(a, roce.Port))
		if errors.Is(err, syscall.EADDRINUSE) {
			t.Skip(err) // by rxe, in the lab
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		m[i] = newMachine(t, newHub(), byte(i+1), onWire(w))
		m[i].setAddress(0, a)
	}
	x, y := pair(m[0], m[1], ifc.QpTypeRc)
	src, dst := m[0].alloc(4*pageBytes), m[1].alloc(4*pageBytes)
	const size = 4 * pageBytes
	for i := range 4 {
		fillPattern(src.at(i*pageBytes, pageBytes), i)
	}
	first := slices.Min(src.addr) // the pages are neighbours, the last of them first
	y.postRecv(seg(size, m[1].key, slices.Min(dst.addr)))
	x.post(ifc.OpcodeSend, update, 0, seg(size, m[0].key, first))
	x.send.expect(cqeRequest, 0, 0)
	y.recv.expect(cqeSend, 0, 0)
	if !bytes.Equal(m[0].bytes(first, size), m[1].bytes(slices.Min(dst.addr), size)) {
		t.Error("SEND: the memories differ")
	}
	clear(m[0].bytes(first, size))
	x.post(ifc.OpcodeRdmaRead, update, 0, remoteSeg(slices.Min(dst.addr), m[1].key), seg(size, m[0].key, first))
	x.send.expect(cqeRequest, 1, 0)
	if !bytes.Equal(m[0].bytes(first, size), m[1].bytes(slices.Min(dst.addr), size)) {
		t.Error("READ: the memories differ")
	}

	// The wire answers requests of ARP, but not for what is on it, nor those that ask for nothing.
	n := m[0].newNetdev()
	arp := func(from, target netip.Addr) []byte {
		f := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1}
		return slices.Concat(f, from.AsSlice(), make([]byte, 6), target.AsSlice(), make([]byte, 18))
	}
	n.frame(arp(addrs[0], addrs[0]))                // announces
	n.frame(arp(netip.IPv4Unspecified(), addrs[1])) // probes
	n.frame(arp(addrs[1], addrs[0]))                // of the adapter itself
	n.frame(arp(addrs[0], netip.MustParseAddr("127.79.1.9")))
	got, _ := n.receive()
	gateway := []byte{0x02, 0x15, 0xb3, 0x09, 0xff, 0xff} // the hosts beyond the socket
	want := slices.Concat([]byte{2, 0, 0, 0, 0, 1}, gateway, []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 2}, gateway,
		[]byte{127, 79, 1, 9}, []byte{2, 0, 0, 0, 0, 1}, addrs[0].AsSlice(), make([]byte, 18))
	if !bytes.Equal(got, want) {
		t.Errorf("answer\n% x, want\n% x", got, want)
	}
}

// TestGroupsOnTheWire sends a datagram to a group, which each member gets once, by whatever number
// of addresses, and the network links as a frame.
func TestGroupsOnTheWire(t *testing.T) {
	for _, name := range []string{"239.129.2.3", "ff05::8102:0304"} {
		t.Run(name, func(t *testing.T) {
			w := NewWire()
			group := netip.MustParseAddr(name)
			gid := group.As16()
			var m [3]*machine
			var q [3]*testQP
			for i := range m {
				m[i] = newMachine(t, newHub(), byte(i+1), onWire(w))
				if group.Is6() {
					m[i].setAddress(0, netip.MustParseAddr(fmt.Sprintf("fd00::%d", i+1)))
				}
				m[i].setAddress(1, netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", 11+i)))
				m[i].setAddress(2, netip.MustParseAddr(fmt.Sprintf("fd00::%d", 11+i)))
				q[i] = m[i].createQP(ifc.QpTypeUd, m[i].createCQ(4, 64), m[i].createCQ(4, 64))
				q[i].connect(0, m[i].addr())
				for range 4 {
					q[i].postRecv(seg(200, m[i].key, m[i].alloc(pageBytes).addr[0]))
				}
			}
			member := func(op uint16, i int) {
				m[i].mustRun(op, 0, func(in []byte) {
					ifc.AttachToMcgInQpn.Set(in, uint64(q[i].num))
					copy(ifc.AttachToMcgInMulticastGid.At(in), gid[:])
				})
			}
			n := m[2].newNetdev()
			av := vector(0xffffff, group)
			member(ifc.OpAttachToMcg, 1)
			q[0].post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("all")))
			frame, e := n.receive()
			want := [6]byte{0x01, 0x00, 0x5e, 1, 2, 3}
			if group.Is6() {
				want = [6]byte{0x33, 0x33, 0x81, 2, 3, 4}
			}
			if [6]byte(frame) != want || e[28] != 7 {
				t.Errorf("a frame to % x, with checksums %#x", frame[:6], e[28])
			}
			member(ifc.OpAttachToMcg, 2) // and in the frame, for which it was no member
			q[0].post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("two")))
			q[2].recv.expect(cqeSend, 0, 0)
			n.receive()
			// What the link of an adapter sends, as rxe behind a bridge does, is for all members.
			frame[6], frame[11] = 0, 0
			n.frame(frame)
			q[2].recv.expect(cqeSend, 1, 0)
			for counter := range uint16(3) {
				q[1].recv.expect(cqeSend, counter, 0)
			}
			member(ifc.OpDetachFromMcg, 1)
			q[0].post(ifc.OpcodeSend, update, 0, av, inlineSeg([]byte("one")))
			q[2].recv.expect(cqeSend, 2, 0)
			for i := range 3 {
				q[i].recv.empty()
			}
		})
	}
}
