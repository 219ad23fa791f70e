package roce

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
)

// slowICRC computes the ICRC of an IP packet, which ends before the ICRC, bit by bit as the
// annex on RoCEv2 specifies it: the CRC of Ethernet over 8 bytes of ones, in the place of the
// local route header, and the packet with ones in its variant fields.
func slowICRC(packet []byte) []byte {
	b := append([]byte(strings.Repeat("\xff", 8)), packet...)
	h := b[8:]
	udp := 20
	if h[0]>>4 == 4 {
		h[1], h[8], h[10], h[11] = 0xff, 0xff, 0xff, 0xff // TOS, TTL, checksum
	} else {
		udp = 40
		h[0] |= 0x0f
		h[1], h[2], h[3], h[7] = 0xff, 0xff, 0xff, 0xff // class, flow label, hop limit
	}
	h[udp+6], h[udp+7] = 0xff, 0xff // checksum
	bth := h[udp+8:]
	bth[4] = 0xff // FECN, BECN, reserved
	if bth[0] == 0x1c {
		b = append(b, packet[udp+8:]...) // rxe's FLUSH
	}
	crc := uint32(0xffffffff)
	for _, v := range b {
		for bit := range 8 {
			top := crc >> 31
			crc <<= 1
			if top^uint32(v>>bit&1) != 0 {
				crc ^= 0x04c11db7
			}
		}
	}
	// The bit of the highest power is the lowest one of the first byte.
	out := make([]byte, 4)
	for i := range 32 {
		if ^crc>>(31-i)&1 != 0 {
			out[i/8] |= 1 << (i % 8)
		}
	}
	return out
}

// TestICRCOfOthers checks packets that other implementations made.
func TestICRCOfOthers(t *testing.T) {
	for _, test := range []struct{ name, packet string }{
		{
			// "Captured on ConnectX-4 Lx": scapy, test/contrib/roce.uts.
			"ConnectX CNP",
			"45c2003c718c4000401191610a0011010a001201" + "000012b700280000" +
				"8100ffff40000118000000000000000000000000000000000000000082fd002a",
		},
		{
			// "An example UC packet" of the same tests.
			"scapy UC SEND_ONLY",
			"4501004004784000" + "4011b4d5" + "c0a80007c0a80007" + "c00012b7002caca2" +
				"2460ffff000000d300cf1710" + "4630818be28935d90e9a95505401be885e500000" + "78f353f3",
		},
		{
			// From the tests of the Python package roomsoc, as a capture of a driver's packet:
			// without "don't fragment", with UDP checksum.
			"roomsoc RC WRITE_ONLY",
			"4500004c000100004011f54cc0a80201c0a80202" + "01f412b70038ffa6" +
				"0a00ffff0000000200000000" + "00000000000012300000000000000010" +
				"000102030405060708090a0b0c0d0e0f" + "ca47470e",
		},
		{
			"roomsoc RC READ_REQUEST",
			"4500003c000100004011f55cc0a80201c0a80202" + "01f412b700286763" +
				"0c00ffff0000000200000000" + "00000000000012300000000000000010" + "6e0f71ea",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			b, err := hex.DecodeString(test.packet)
			if err != nil {
				t.Fatal(err)
			}
			be := binary.BigEndian
			h := ip{
				src: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[12:])), be.Uint16(b[20:])),
				dst: netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[16:])), be.Uint16(b[22:])),
				id:  be.Uint16(b[4:]), flags: b[6],
			}
			packet, icrc := b[28:], b[len(b)-4:]
			if got := slowICRC(b[:len(b)-4]); string(got) != string(icrc) {
				t.Errorf("the slow implementation has %x, not %x", got, icrc)
			}
			var p Packet
			if err := p.Decode(packet); err != nil {
				t.Error(err)
			}
			if got := h.flow().AppendICRC(packet[:len(packet)-4:len(packet)-4], h.id); string(got) != string(packet) {
				t.Errorf("%x, not %x", got, packet)
			}
			if !h.flow().Verify(packet, h.id) {
				t.Error("Verify: false")
			}
			if id, ok := h.flow().VerifyUnknownID(packet); !ok || id != h.id {
				t.Errorf("VerifyUnknownID: %#x, %v", id, ok)
			}
		})
	}
}

// TestICRC compares with the slow implementation, for all opcodes and families and many sizes.
func TestICRC(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 255, 256, 1000, 1024, 1025, 4096, 4097, 9000, 20000, 65000}
	for _, op := range known() {
		for _, v4 := range []bool{true, false} {
			for _, size := range sizes {
				h := randomIP(r, v4)
				b := randomPacket(r, op, size).Append(nil)
				b[4] |= byte(r.Uint32()) & 0x3f // reserved bits
				// The ICRC belongs to the packet that the lengths are of.
				whole := h.datagram(append(b[:len(b):len(b)], 0, 0, 0, 0))
				want := slowICRC(whole[:len(whole)-4])
				f := h.flow()
				b = f.AppendICRC(b, h.id)
				if got := b[len(b)-4:]; string(got) != string(want) {
					t.Fatalf("%v of %d bytes, IPv4 %v: %x, not %x", op, size, v4, got, want)
				}
				if !f.Verify(b, h.id) {
					t.Fatalf("%v of %d bytes: Verify: false", op, size)
				}
				// The flag of the receiver's flow does not matter.
				for _, f := range []Flow{f, must(NewFlow(h.src, h.dst))} {
					if id, ok := f.VerifyUnknownID(b); !ok || v4 && id != h.id || !v4 && id != 0 {
						t.Fatalf("%v of %d bytes: VerifyUnknownID: %#x, %v, not %#x", op, size, id, ok, h.id)
					}
				}
				if v4 && f.Verify(b, h.id+1) || !v4 && !f.Verify(b, h.id+1) {
					t.Fatalf("%v of %d bytes: Verify of another identification", op, size)
				}
				if v4 {
					f.PutICRC(b, 0)
					binary.LittleEndian.PutUint32(b[len(b)-4:], Renumber(b, h.id))
					if !f.Verify(b, h.id) {
						t.Fatalf("%v of %d bytes: Verify after Renumber: false", op, size)
					}
				}
			}
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestICRCFlush checks that a FLUSH is also accepted with the ICRC of the specification.
func TestICRCFlush(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, v4 := range []bool{true, false} {
		h := randomIP(r, v4)
		b := randomPacket(r, RCFlush, 0).Append(nil)
		whole := h.datagram(append(b[:len(b):len(b)], 0, 0, 0, 0))
		// The slow implementation computes rxe's for this opcode only: compute that of the
		// specification with another opcode, and correct the difference.
		c := h.flow().register(append(b, 0, 0, 0, 0), h.id)
		b = binary.LittleEndian.AppendUint32(b, ^c)
		whole[len(whole)-36] = byte(RCReadRequest)
		read := append([]byte{byte(RCReadRequest)}, b[1:len(b)-4]...)
		if got := h.flow().AppendICRC(read, h.id); string(got[len(got)-4:]) != string(slowICRC(whole[:len(whole)-4])) {
			t.Error("one pass differs from the slow implementation")
		}
		if !h.flow().Verify(b, h.id) {
			t.Error("Verify: false")
		}
		if id, ok := h.flow().VerifyUnknownID(b); !ok || v4 && id != h.id {
			t.Errorf("VerifyUnknownID: %#x, %v", id, ok)
		}
		b[20] ^= 1
		if _, ok := h.flow().VerifyUnknownID(b); ok || h.flow().Verify(b, h.id) {
			t.Error("an error is accepted")
		}
		// Other packets are not accepted with a second pass.
		b[20] ^= 1
		b[0] = byte(RCReadRequest)
		c = again(h.flow().register(b, h.id), b)
		binary.LittleEndian.PutUint32(b[len(b)-4:], ^c)
		if _, ok := h.flow().VerifyUnknownID(b); ok || h.flow().Verify(b, h.id) {
			t.Error("two passes are accepted")
		}
	}
}

// TestICRCOddLength checks that VerifyUnknownID refuses lengths that no packet has.
func TestICRCOddLength(t *testing.T) {
	h := randomIP(rand.New(rand.NewPCG(1, 2)), true)
	for n := 16; n < 24; n++ {
		b := make([]byte, n)
		h.flow().PutICRC(b, 0)
		if _, ok := h.flow().VerifyUnknownID(b); ok != (n%4 == 0) {
			t.Errorf("%d bytes: %v", n, ok)
		}
	}
}

// TestSolve checks solve against all identifications, with and without the flag.
func TestSolve(t *testing.T) {
	tablesOnce.Do(makeTables)
	for _, n := range []int{9, 10, 11, 265, 1037, maxShift, maxShift + 1, 3*maxShift + 5} {
		causes := make(map[uint32]uint16, 1<<17)
		for v := range uint32(1 << 17) {
			// The bytes of the identification, the flag, zeros, and n-1 words.
			c := uint32(0)
			for _, b := range []byte{byte(v >> 8), byte(v), byte(v >> 16 << 6), 0} {
				c = c>>8 ^ byteCRC[0][byte(c)^b]
			}
			c = slowShift(c, n-1)
			if _, twice := causes[c]; twice {
				t.Fatalf("%d words: two causes of a difference", n)
			}
			causes[c] = uint16(v)
			if id, ok := solve(c, n); !ok || id != uint16(v) {
				t.Fatalf("%d words: %#x, %v, not %#x", n, id, ok, uint16(v))
			}
		}
		r := rand.New(rand.NewPCG(uint64(n), 0))
		accepted := 0
		for range 1 << 18 {
			d := r.Uint32()
			id, ok := solve(d, n)
			if want, is := causes[d]; ok != is || id != want {
				t.Fatalf("%d words: difference %#x: %#x, %v, not %#x, %v", n, d, id, ok, want, is)
			}
			if ok {
				accepted++
			}
		}
		if accepted > 40 { // 8 are expected
			t.Errorf("%d words: %d of %d differences accepted", n, accepted, 1<<18)
		}
	}
}

// slowShift multiplies by x^(32 n), by squares.
func slowShift(c uint32, n int) uint32 {
	power := uint32(1) // x^31
	power = slowMultiply(power, 1<<30)
	for ; n != 0; n >>= 1 {
		if n&1 != 0 {
			c = slowMultiply(c, power)
		}
		power = slowMultiply(power, power)
	}
	return c
}

func slowMultiply(a, b uint32) (p uint32) {
	for bit := 31; bit >= 0; bit-- {
		if a>>bit&1 != 0 {
			p ^= b
		}
		low := b & 1
		b >>= 1
		if low != 0 {
			b ^= 0xedb88320
		}
	}
	return p
}

// TestMultiply compares with multiplication bit by bit.
func TestMultiply(t *testing.T) {
	tablesOnce.Do(makeTables)
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 1 << 18 {
		a, b := r.Uint32(), r.Uint32()
		switch i {
		case 0:
			a, b = ^uint32(0), ^uint32(0)
		case 1:
			a, b = 0, ^uint32(0)
		case 2:
			a = 1 << 31
		}
		if got, want := multiply(a, b), slowMultiply(a, b); got != want {
			t.Fatalf("%#x * %#x = %#x, not %#x", a, b, got, want)
		}
	}
	for n := range maxShift + 1 {
		if multiply(shift[n], unshift[n]) != 1<<31 || shift[n] != slowShift(1<<31, n) {
			t.Fatalf("power %d", n)
		}
	}
}

// TestICRCDetects checks that errors in packets are detected: all of one bit and all bursts
// of up to 32 bits if the identification is known, and the expected share of all if it is not.
func TestICRCDetects(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	accepted, tried := 0, 0
	for _, v4 := range []bool{true, false} {
		for _, size := range []int{0, 8, 1024} {
			h := randomIP(r, v4)
			f := h.flow()
			b := f.AppendICRC(randomPacket(r, RCWriteOnly, size).Append(nil), h.id)
			for bit := range len(b) * 8 {
				for _, burst := range []uint32{1, 1 | r.Uint32()} {
					c := append([]byte{}, b...)
					for i := range 32 {
						if at := bit + i; at < len(c)*8 && burst>>i&1 != 0 {
							c[at/8] ^= 1 << (at % 8)
						}
					}
					c[4] = b[4] // not covered
					if string(c) == string(b) {
						continue
					}
					if f.Verify(c, h.id) {
						t.Fatalf("error %#x at bit %d of %d bytes is accepted", burst, bit, len(b))
					}
					_, ok := f.VerifyUnknownID(c)
					switch {
					case ok && !v4:
						t.Fatalf("IPv6: error %#x at bit %d of %d bytes is accepted", burst, bit, len(b))
					case v4:
						tried++
						if ok {
							accepted++
						}
					}
				}
			}
		}
	}
	t.Logf("with unknown identification, %d of %d errors were accepted", accepted, tried)
	if accepted > 5 { // 0.6 is expected
		t.Errorf("%d of %d errors accepted", accepted, tried)
	}
	// Wrong addresses, ports and lengths.
	h := randomIP(r, true)
	b := h.flow().AppendICRC(randomPacket(r, RCSendOnly, 256).Append(nil), h.id)
	for _, change := range []func(h *ip){
		func(h *ip) { h.src = netip.AddrPortFrom(h.src.Addr().Next(), h.src.Port()) },
		func(h *ip) { h.dst = netip.AddrPortFrom(h.dst.Addr().Next(), h.dst.Port()) },
		func(h *ip) { h.src = netip.AddrPortFrom(h.src.Addr(), h.src.Port()^1) },
		func(h *ip) { h.dst = netip.AddrPortFrom(h.dst.Addr(), h.dst.Port()^1) },
		func(h *ip) { h.src, h.dst = h.dst, h.src },
	} {
		g := h
		change(&g)
		if _, ok := g.flow().VerifyUnknownID(b); ok || g.flow().Verify(b, h.id) {
			t.Errorf("the packet of %v to %v is accepted from %v to %v", h.src, h.dst, g.src, g.dst)
		}
	}
	for n := range len(b) {
		if _, ok := h.flow().VerifyUnknownID(b[:n]); ok || h.flow().Verify(b[:n], h.id) {
			t.Errorf("a packet of %d bytes is accepted with %d", len(b), n)
		}
	}
}

func TestNewFlow(t *testing.T) {
	v4, v6 := netip.MustParseAddrPort("10.0.0.1:5000"), netip.MustParseAddrPort("[2001:db8::1]:5000")
	mapped := netip.MustParseAddrPort("[::ffff:10.0.0.1]:5000")
	for _, pair := range [][2]netip.AddrPort{{v4, v6}, {v6, v4}, {mapped, v6}, {v4, {}}, {{}, {}}} {
		if _, err := NewFlow(pair[0], pair[1]); !errors.Is(err, ErrFamily) {
			t.Errorf("%v to %v: %v", pair[0], pair[1], err)
		}
	}
	if must(NewFlow(mapped, v4)) != must(NewFlow(v4, mapped)) {
		t.Error("mapped addresses make another flow")
	}
	if !must(NewFlow(mapped, v4)).IPv4() || must(NewFlow(v6, v6)).IPv4() {
		t.Error("IPv4 is wrong")
	}
	if f := must(NewFlow(v6, v6)); f.Fragmentable() != f {
		t.Error("Fragmentable changes an IPv6 flow")
	}
	if f := must(NewFlow(v4, v4)).Fragmentable(); f.Fragmentable() != f {
		t.Error("Fragmentable changes a fragmentable flow")
	}
}

// flowIPv4Fragmentable is the kind of Fragmentable flows.
const flowIPv4Fragmentable = flowIPv4 + 1

// Fragmentable returns the flow of IPv4 packets without the flag "don't fragment". It does not change
// a flow of IPv6.
func (f Flow) Fragmentable() Flow {
	if f.kind != flowIPv4 {
		return f
	}
	var flags field
	flags.fill(22)
	return Flow{f.crc ^ flags.crc(dfFlag<<8), flowIPv4Fragmentable}
}
