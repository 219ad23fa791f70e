package roce

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/goverbs/verbs"
)

var (
	benchSrc = netip.MustParseAddrPort("10.9.0.1:50000")
	benchDst = netip.MustParseAddrPort("10.9.0.2:4791")
)

// benchPacket returns a packet with its ICRC for an identification.
func benchPacket(op Opcode, payload int, id uint16) (*Packet, []byte) {
	if !op.Has(HasPayload) {
		payload = 0
	}
	p := &Packet{Opcode: op, PKey: DefaultPKey, DestQP: 17, Payload: make([]byte, payload)}
	return p, must(NewFlow(benchSrc, benchDst)).AppendICRC(p.Append(nil), id)
}

// TestAllocations checks that nothing on the path of packets allocates.
func TestAllocations(t *testing.T) {
	buf := make([]byte, 0, 8192)
	for _, op := range known() {
		p, b := benchPacket(op, 1024, 77)
		payload := p.Payload
		var q Packet
		var g GRH
		var grh [verbs.GRHSize]byte
		n := testing.AllocsPerRun(100, func() {
			f, err := NewFlow(benchSrc, benchDst)
			if err != nil {
				t.Fatal(err)
			}
			out := p.AppendHeaders(buf[:0])
			out = append(out, payload...)
			out = append(out, Padding(len(payload))...)
			out = f.AppendICRC(out, 0)
			binary.LittleEndian.PutUint32(out[len(out)-4:], Renumber(out, 77))
			if err := q.Decode(b); err != nil || string(out[len(out)-4:]) != string(b[len(b)-4:]) {
				t.Fatal(err, "or ICRC")
			}
			if id, ok := f.VerifyUnknownID(b); !ok || id != 77 || !f.Verify(b, 77) {
				t.Fatal("ICRC")
			}
			if !q.Opcode.PayloadFits(len(q.Payload), len(q.Payload)) && !op.Has(IsAtomicWrite) && op != CNP {
				t.Fatal("payload")
			}
			g = GRH{Src: benchSrc.Addr(), Dst: benchDst.Addr(), Length: len(b)}
			g.Put(&grh)
		})
		if n != 0 {
			t.Errorf("%v: %v allocations", op, n)
		}
	}
	for _, bad := range [][]byte{nil, make([]byte, 16), {0x15, 19: 0}, {0, 1, 19: 0}} {
		var q Packet
		if n := testing.AllocsPerRun(100, func() { _ = q.Decode(bad) }); n != 0 {
			t.Errorf("an error: %v allocations", n)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	for _, op := range []Opcode{RCSendMiddle, RCWriteFirst, RCAcknowledge, RCCompareSwap, UDSendOnly} {
		_, packet := benchPacket(op, 1024, 0)
		b.Run(op.String(), func(b *testing.B) {
			b.ReportAllocs()
			var p Packet
			for b.Loop() {
				if err := p.Decode(packet); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkAppendHeaders(b *testing.B) {
	buf := make([]byte, 0, 64)
	for _, op := range []Opcode{RCSendMiddle, RCWriteFirst, RCAcknowledge} {
		p, _ := benchPacket(op, 1024, 0)
		b.Run(op.String(), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				buf = p.AppendHeaders(buf[:0])
			}
		})
	}
}

func BenchmarkNewFlow(b *testing.B) {
	v6 := netip.MustParseAddrPort("[2001:db8::1]:5000")
	for _, pair := range [][2]netip.AddrPort{{benchSrc, benchDst}, {v6, v6}} {
		b.Run(fmt.Sprintf("IPv6=%v", pair[0] == v6), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := NewFlow(pair[0], pair[1]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkICRC measures by payload: the difference of VerifyUnknownID and Verify is the cost
// of an unknown identification.
func BenchmarkICRC(b *testing.B) {
	const id = 77
	f := must(NewFlow(benchSrc, benchDst))
	for _, n := range []int{0, 64, 256, 1024, 4096} {
		_, packet := benchPacket(RCSendOnly, n, id)
		for _, bench := range []struct {
			name string
			run  func() bool
		}{
			{"Put", func() bool { f.PutICRC(packet, id); return true }},
			{"Verify", func() bool { return f.Verify(packet, id) }},
			{"VerifyUnknownID", func() bool { got, ok := f.VerifyUnknownID(packet); return ok && got == id }},
			{"Renumber", func() bool { return Renumber(packet, id) != 0 }},
		} {
			b.Run(fmt.Sprintf("%s/%d", bench.name, n), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(packet)))
				for b.Loop() {
					if !bench.run() {
						b.Fatal("ICRC")
					}
				}
			})
		}
	}
}

func BenchmarkCM(b *testing.B) {
	req := &REQ{LocalCommID: 1, PrivateData: make([]byte, REQPrivateData)}
	mad := must(AppendCM(nil, 1, req))
	b.Run("Append", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			mad = must(AppendCM(mad[:0], 1, req))
		}
	})
	b.Run("Decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := DecodeCM(mad); err != nil {
				b.Fatal(err)
			}
		}
	})
}
