//go:build linux

package wire

import (
	"bytes"
	"net"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs/internal/netif"
)

// TestFullWire sends more packets and frames than the wire keeps for a receiver that does not take
// them: each that is dropped is reported.
func TestFullWire(t *testing.T) {
	const extra = 5
	w := New()
	a, b := netip.MustParseAddrPort("10.0.0.1:4791"), netip.MustParseAddrPort("10.0.0.2:4791")
	from, err := w.Network(nil).Open(a)
	if err != nil {
		t.Fatal(err)
	}
	to, err := w.Network(nil).Open(b)
	if err != nil {
		t.Fatal(err)
	}
	packets, frames := 0, 0
	to.(netif.Drops).OnDrop(func(sent, received int) { packets += sent + received })
	sender := w.Attach(net.HardwareAddr{2, 5: 1}, func([][]byte) {}, nil)
	defer sender.Detach()
	first, proceed := make(chan bool, 1), make(chan bool)
	receiver := w.Attach(net.HardwareAddr{2, 5: 2}, func([][]byte) { first <- true; <-proceed }, func() { frames++ })
	frame := make([]byte, 60)
	sender.Send(frame)
	<-first // it takes no more from now on
	for range wireQueue + extra {
		from.Send([]netif.Packet{{Src: a, Dst: b, Data: []byte{1}}})
		sender.Send(frame)
	}
	if packets != extra || frames != extra {
		t.Errorf("%d packets and %d frames were dropped, want %d of each", packets, frames, extra)
	}
	close(proceed)
	receiver.Detach()
}

// TestLoss makes the wire lose packets of one sender: none of another's.
func TestLoss(t *testing.T) {
	w := New()
	var addrs [3]netip.AddrPort
	var ports [3]netif.Port
	lossy := w.Network(nil)
	for i, n := range []netif.Network{lossy, w.Network(nil), w.Network(nil)} {
		addrs[i] = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 4791)
		var err error
		if ports[i], err = n.Open(addrs[i]); err != nil {
			t.Fatal(err)
		}
	}
	const sent = 4000
	for _, r := range []struct {
		oneOf       uint32
		least, most int
	}{{0, sent, sent}, {4, sent * 7 / 10, sent * 8 / 10}, {1, 0, 0}, {0, sent, sent}} {
		lossy.(interface{ Lose(uint32) }).Lose(r.oneOf)
		for from, least := range []int{r.least, sent} {
			most := max(r.most, least)
			for range sent {
				if err := ports[from].Send([]netif.Packet{{Src: addrs[from], Dst: addrs[2], Data: []byte{1}}}); err != nil {
					t.Fatal(err)
				}
			}
			to := ports[2].(*rocePort)
			if n := len(to.list); n < least || n > most {
				t.Errorf("one of %d lost: %d of %d packets of port %d arrive, want %d to %d", r.oneOf, n, sent, from, least, most)
			}
			to.list = nil
		}
	}
}

// TestHosts: the wire knows as many hosts as the table takes, and begins again with one too many.
func TestHosts(t *testing.T) {
	w := New()
	p := w.Attach(net.HardwareAddr{2, 5: 1}, func([][]byte) {}, nil)
	defer p.Detach()
	say := func(host int) {
		f := make([]byte, 64)
		copy(f[6:], []byte{2, 0, 0, 0, byte(host >> 8), byte(host)})
		be.PutUint16(f[12:], typeARP)
		copy(f[EtherSize+14:], []byte{10, 0, byte(host >> 8), byte(host)})
		p.Send(f)
	}
	for host := range wireHosts {
		say(host)
		say(0)
	}
	if len(w.macs) != wireHosts || w.macs[netip.AddrFrom4([4]byte{10, 0, 1, 7})] != (mac{2, 0, 0, 0, 1, 7}) {
		t.Errorf("%d hosts are known, of %d", len(w.macs), wireHosts)
	}
	say(1)
	if len(w.macs) != wireHosts {
		t.Error("a host that is known makes the wire forget others")
	}
	if say(wireHosts); len(w.macs) != 1 {
		t.Errorf("%d hosts are known after one too many", len(w.macs))
	}
}

// TestHeaders finds the headers of frames.
func TestHeaders(t *testing.T) {
	udp := []byte{0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0xb7, 0x12, 0xb7, 0, 10, 0, 0, 1, 2}
	fragment := bytes.Clone(udp)
	fragment[6] = 0x20
	for _, test := range []struct {
		name  string
		frame []byte
		want  headers
	}{
		{"IPv4", append([]byte{12: typeIPv4 >> 8, 13: typeIPv4 & 0xff}, udp...), headers{l3: 14, L4: 34, End: 44, Proto: 17, L3Type: 2}},
		{"fragment", append([]byte{12: typeIPv4 >> 8, 13: typeIPv4 & 0xff}, fragment...), headers{l3: 14, L4: 34, End: 44, L3Type: 2}},
		{"VLAN", append([]byte{12: TypeVLAN >> 8, 13: TypeVLAN & 0xff, 16: typeIPv4 >> 8, 17: typeIPv4 & 0xff}, udp...), headers{l3: 18, L4: 38, End: 48, Proto: 17, L3Type: 2, VLAN: true}},
		{"IPv6", []byte{12: typeIPv6 >> 8, 13: typeIPv6 & 0xff, 14: 0x60, 19: 20, 20: 6, 53: 0, 73: 0}, headers{l3: 14, L4: 54, End: 74, Proto: 6, L3Type: 1}},
		{"cut", append([]byte{12: typeIPv4 >> 8, 13: typeIPv4 & 0xff}, udp[:29]...), headers{}},
		{"ARP", arpReply(make([]byte, 64), mac{2}), headers{}},
	} {
		got := Parse(test.frame)
		got.pseudo = 0 // see FuzzHeaders
		if got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got, test.want)
		}
	}
}

// TestGroups: groups have the MAC addresses that RFC 1112 and RFC 2464 give them.
func TestGroups(t *testing.T) {
	for group, want := range map[string]mac{"239.129.2.3": {1, 0, 0x5e, 1, 2, 3}, "ff0e::102:304": {0x33, 0x33, 1, 2, 3, 4}} {
		if got := groupMAC(netip.MustParseAddr(group)); got != want {
			t.Errorf("%s: % x, want % x", group, got, want)
		}
	}
}

// FuzzHeaders reads what a guest may send: nothing crashes, and the checksums that are filled in
// are those that are expected.
func FuzzHeaders(f *testing.F) {
	ipv4 := []byte{0x45, 0, 0, 30, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x12, 0xb7, 0x12, 0xb7, 0, 10, 0, 0, 1, 2}
	f.Add(append([]byte{12: typeIPv4 >> 8, 13: typeIPv4 & 0xff}, ipv4...))
	f.Add(append([]byte{12: TypeVLAN >> 8, 13: TypeVLAN & 0xff, 16: typeIPv4 >> 8, 17: typeIPv4 & 0xff}, ipv4...))
	f.Add([]byte{12: typeIPv6 >> 8, 13: typeIPv6 & 0xff, 14: 0x60, 19: 20, 20: 6, 53: 0, 66: 0x50, 73: 0})
	f.Add(append(arpReply(make([]byte, 64), mac{2}), "padding"...))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) < EtherSize {
			return
		}
		source(frame)
		framePacket(frame)
		FlowHash(frame)
		Inspect(frame)
		filled := bytes.Clone(frame)
		FillChecksums(filled, true, true)
		if h := Inspect(filled); h.L3Type != 0 && h.L3OK == 0 || h.L4Type != 0 && h.L4OK == 0 {
			t.Errorf("headers %+v of % x", h, filled)
		}
	})
}
