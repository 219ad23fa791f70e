package udp

import (
	"fmt"
	"io"
	"net"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs/internal/netif"
)

// variants are the ways to send, as benchmarks name them.
var variants = []struct {
	name    string
	network Network
}{
	{"offload", Network{}},
	{"plain", Network{NoOffload: true}},
}

// BenchmarkRoundTrip sends packets with 64 bytes there and back. TCP is for comparison.
func BenchmarkRoundTrip(b *testing.B) {
	for _, v := range variants {
		b.Run(v.name, func(b *testing.B) {
			x, y := pair(b, v.network, "127.0.0.1")
			answer := []netif.Packet{packet(y.Addr(), x.Addr(), 64, 2)}
			y.Start(func(pkts []netif.Packet) {
				for range pkts {
					y.Send(answer)
				}
			})
			back := make(chan struct{}, 1)
			request := []netif.Packet{packet(x.Addr(), y.Addr(), 64, 1)}
			var n atomic.Int64
			x.Start(func(pkts []netif.Packet) { // as a device that answers at once
				if n.Add(-1) <= 0 {
					back <- struct{}{}
					return
				}
				x.Send(request)
			})
			b.ReportAllocs()
			b.ResetTimer()
			n.Store(int64(b.N))
			x.Send(request)
			<-back
		})
	}
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		go func() {
			buf := make([]byte, 64)
			for {
				if _, err := io.ReadFull(y, buf); err != nil {
					return
				}
				y.Write(buf)
			}
		}()
		buf := make([]byte, 64)
		b.ResetTimer()
		for b.Loop() {
			x.Write(buf)
			if _, err := io.ReadFull(x, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkThroughput sends batches of packets with 1 or 4 KiB of payload. The receiver
// acknowledges each batch, and two are on the way, as in a device's window.
func BenchmarkThroughput(b *testing.B) {
	const batch, window = 64, 2
	for _, payload := range []int{1024, 4096} {
		for _, v := range variants {
			b.Run(fmt.Sprintf("%dKiB/%s", payload/1024, v.name), func(b *testing.B) {
				x, y := pair(b, v.network, "127.0.0.1")
				ack := []netif.Packet{packet(y.Addr(), x.Addr(), 20, 2)}
				received := 0
				y.Start(func(pkts []netif.Packet) {
					for range pkts {
						if received++; received%batch == 0 {
							y.Send(ack)
						}
					}
				})
				credit := make(chan struct{}, window)
				x.Start(func(pkts []netif.Packet) {
					for range pkts {
						credit <- struct{}{}
					}
				})
				for range window {
					credit <- struct{}{}
				}
				var pkts []netif.Packet
				for range batch {
					pkts = append(pkts, packet(x.Addr(), y.Addr(), payload+16, 1))
				}
				b.SetBytes(batch * int64(payload))
				b.ReportAllocs()
				for b.Loop() {
					<-credit
					if err := x.Send(pkts); err != nil {
						b.Fatal(err)
					}
				}
				s := y.Stats()
				b.ReportMetric(float64(s.Received)/float64(max(s.ReceivedCalls, 1)), "pkts/recv")
				if s.Dropped > 0 {
					b.Fatalf("%d packets were dropped", s.Dropped)
				}
			})
		}
		b.Run(fmt.Sprintf("%dKiB/tcp", payload/1024), func(b *testing.B) {
			x, y := tcpPair(b)
			go io.Copy(io.Discard, struct{ io.Reader }{y})
			buf := make([]byte, batch*payload)
			b.SetBytes(int64(len(buf)))
			for b.Loop() {
				if _, err := x.Write(buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func tcpPair(b *testing.B) (x, y net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	if x, err = net.Dial("tcp", l.Addr().String()); err != nil {
		b.Fatal(err)
	}
	if y, err = l.Accept(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}
