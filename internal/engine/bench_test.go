package engine

import (
	"testing"

	"github.com/goverbs/verbs"
)

// benchPair returns connected QPs of two devices on a network, or of one device.
func benchPair(b *testing.B, self bool, memory int) (*conn, *conn) {
	net := newTestNetwork(1, faults{})
	n := newNode(b, net, memory, addrA)
	m := n
	if self {
		m = n.sibling(memory)
	} else {
		m = newNode(b, net, memory, addrB)
	}
	return pair(n, m, verbs.RC, func(q *verbs.QPAttr) { q.PathMTU = 5; q.Timeout = 14 })
}

// BenchmarkSend measures half a round trip of 64 bytes.
func BenchmarkSend(b *testing.B) {
	for _, self := range []bool{true, false} {
		b.Run(map[bool]string{true: "self", false: "network"}[self], func(b *testing.B) {
			x, y := benchPair(b, self, 4096)
			for i := range uint64(64) {
				x.postRecv(i, x.n.sge(0, 64))
				y.postRecv(i, y.n.sge(0, 64))
			}
			done := make(chan struct{})
			wr := verbs.SendWR{Opcode: verbs.OpSend}
			go func() {
				defer close(done)
				wr, sgl := wr, []verbs.SGE{y.n.sge(64, 64)}
				for range b.N {
					y.n.rcq.next(b)
					y.postRecv(0, y.n.sge(0, 64))
					wr.SGL = sgl
					y.put(&wr)
					y.Doorbell()
				}
			}()
			sgl := []verbs.SGE{x.n.sge(64, 64)}
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				wr.SGL = sgl
				x.put(&wr)
				x.Doorbell()
				x.n.rcq.next(b)
				x.postRecv(0, x.n.sge(0, 64))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/2, "ns/half")
			<-done
		})
	}
}

// BenchmarkDoorbell measures a SEND of 64 bytes to a QP of the same device: request,
// response and both completions, in one goroutine.
func BenchmarkDoorbell(b *testing.B) {
	x, y := benchPair(b, true, 4096)
	wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{x.n.sge(64, 64)}}
	sge := y.n.sge(0, 64)
	b.ReportAllocs()
	for b.Loop() {
		y.postRecv(0, sge)
		x.put(&wr)
		x.Doorbell()
		x.n.cq.next(b)
		y.n.rcq.next(b)
	}
}

// BenchmarkWrite measures the bandwidth of WRITEs of 64 KiB, 16 at a time.
func BenchmarkWrite(b *testing.B) { benchmarkRDMA(b, verbs.OpRDMAWrite) }

// BenchmarkRead does so for READs.
func BenchmarkRead(b *testing.B) { benchmarkRDMA(b, verbs.OpRDMARead) }

func benchmarkRDMA(b *testing.B, op verbs.Opcode) {
	const size, depth = 64 << 10, 16
	for _, self := range []bool{true, false} {
		b.Run(map[bool]string{true: "self", false: "network"}[self], func(b *testing.B) {
			x, y := benchPair(b, self, depth*size)
			wrs := make([]verbs.SendWR, depth)
			for i := range wrs {
				wrs[i] = verbs.SendWR{
					Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{x.n.sge(i*size, size)},
					RemoteAddr: y.n.addr(i * size), RKey: y.n.mr.RKey(),
				}
			}
			b.SetBytes(size)
			b.ReportAllocs()
			b.ResetTimer()
			posted := 0
			for done := 0; done < b.N; done++ {
				for ; posted < b.N && posted-done < depth; posted++ {
					x.put(&wrs[posted%depth])
				}
				x.Doorbell()
				if wc := x.n.cq.next(b); wc.Status != verbs.WCSuccess {
					b.Fatal(wc.Status)
				}
			}
		})
	}
}
