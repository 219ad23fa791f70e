package verbstest

import (
	"net/netip"
	"testing"

	"github.com/goverbs/verbs/internal/roce"
	"github.com/goverbs/verbs/soft"
)

// BenchmarkSend sends batches of packets with 1 KiB of payload and waits for each batch.
func BenchmarkSend(b *testing.B) {
	for name, o := range map[string]Options{
		"plain":   {},
		"notrace": {TraceLimit: -1},
		"filter":  {Filter: func(p *Packet) Action { return Action{Drop: p.Kind == Nak} }},
	} {
		b.Run(name, func(b *testing.B) {
			n := NewNetwork(o)
			defer n.Close()
			x, err := n.Open(netip.AddrPortFrom(addrA, 0))
			if err != nil {
				b.Fatal(err)
			}
			y, err := n.Open(netip.AddrPortFrom(addrB, 0))
			if err != nil {
				b.Fatal(err)
			}
			const batch = 32
			done := make(chan struct{})
			received := 0
			y.Start(func(pkts []soft.Packet) {
				if received += len(pkts); received%batch == 0 {
					done <- struct{}{}
				}
			})
			p := roce.Packet{Opcode: roce.RCSendMiddle, DestQP: 2, Payload: make([]byte, 1024)}
			pk := soft.Packet{Dst: y.Addr(), Data: data(x.Addr(), y.Addr(), p)}
			var pkts []soft.Packet
			for range batch {
				pkts = append(pkts, pk)
			}
			b.SetBytes(batch * 1024)
			b.ReportAllocs()
			for b.Loop() {
				if err := x.Send(pkts); err != nil {
					b.Fatal(err)
				}
				<-done
			}
		})
	}
}
