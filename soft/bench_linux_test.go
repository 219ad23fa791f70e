package soft_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

// Benchmarks compare two devices in this process with TCP on the loopback interface. Processor
// time and allocations are those of the whole process, so of both sides.

const (
	benchA = "127.0.0.2"
	benchB = "127.0.0.3"
)

// benchNetworks are what devices are connected by.
var benchNetworks = []struct {
	name    string
	network func() soft.Network
}{
	{"udp", func() soft.Network { return nil }},
	{"memory", func() soft.Network {
		return verbstest.NewNetwork(verbstest.Options{MTU: 65536, TraceLimit: -1})
	}},
}

// benchDevices makes two devices, of two hosts.
func benchDevices(b *testing.B, network soft.Network) (devs [2]*soft.Device) {
	b.Helper()
	for i, addr := range []string{benchA, benchB} {
		devs[i] = must(soft.New(soft.Options{
			Network: network, Host: "bench" + addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Port: 14792,
		}))(b)
		b.Cleanup(func() { devs[i].Close() })
	}
	return devs
}

// usage measures what the process uses between begin and report.
type usage struct {
	devs   []*soft.Device
	cpu    time.Duration
	allocs uint64
	pkts   int64
}

// processorTime returns what the process has used.
func processorTime() time.Duration {
	var r syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &r) // cannot fail
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func (u *usage) now() (n usage) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	n.cpu = processorTime()
	n.allocs = m.Mallocs
	for _, d := range u.devs {
		n.pkts += int64(d.Stats()["sent_pkts"])
	}
	return n
}

// begin starts the measurement and the benchmark's timer.
func (u *usage) begin(b *testing.B) {
	n := u.now()
	u.cpu, u.allocs, u.pkts = n.cpu, n.allocs, n.pkts
	b.ResetTimer()
}

// report ends the measurement of b.N operations with bytes each.
func (u *usage) report(b *testing.B, bytes int) {
	b.StopTimer()
	n := u.now()
	cpu := n.cpu - u.cpu
	b.ReportMetric(float64(cpu.Nanoseconds())/float64(b.N), "cpu-ns/op")
	if bytes > 64 {
		b.ReportMetric(float64(cpu.Microseconds())/(float64(b.N)*float64(bytes)/(1<<20)), "cpu-µs/MiB")
	}
	if pkts := n.pkts - u.pkts; pkts > 0 {
		b.ReportMetric(float64(n.allocs-u.allocs)/float64(pkts), "allocs/pkt")
		b.ReportMetric(float64(pkts)/float64(b.N), "pkts/op")
	}
}

// benchSide is an end of a connection of queue pairs.
type benchSide struct {
	scq, rcq *uverbs.CQ
	qp       *uverbs.QP
	mr       *uverbs.MR
}

func newBenchSide(b *testing.B, d *soft.Device, memory int) *benchSide {
	b.Helper()
	ctx := must(uverbs.Open(d.Name()))(b)
	b.Cleanup(func() { ctx.Close() })
	pd := must(ctx.AllocPD())(b)
	ch := must(ctx.CreateCompChannel())(b)
	s := &benchSide{
		scq: must(ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: ch}))(b),
		rcq: must(ctx.CreateCQ(uverbs.CQOptions{Depth: 64, Channel: ch}))(b),
	}
	s.qp = must(pd.CreateQP(uverbs.QPOptions{SendCQ: s.scq, RecvCQ: s.rcq, Cap: verbs.QPCap{
		MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64,
	}}))(b)
	s.mr = must(pd.AllocMR(memory, verbs.AccessAll, uverbs.MROptions{}))(b)
	return s
}

// benchPair connects queue pairs of two devices.
func benchPair(b *testing.B, devs [2]*soft.Device, memory int) (x, y *benchSide) {
	b.Helper()
	x, y = newBenchSide(b, devs[0], memory), newBenchSide(b, devs[1], memory)
	ex, ey := must(x.qp.Addr(1))(b), must(y.qp.Addr(1))(b)
	o := uverbs.ConnectOptions{Access: verbs.AccessAll, PathMTU: verbs.MTU4096, MaxRDAtomic: 16}
	for _, err := range []error{x.qp.Connect(ex, ey, o), y.qp.Connect(ey, ex, o)} {
		if err != nil {
			b.Fatal(err)
		}
	}
	return x, y
}

// recv posts receives of 64 bytes.
func (s *benchSide) recv(n int) error {
	for range n {
		if _, err := s.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{s.mr.SGE(0, 64)}}); err != nil {
			return err
		}
	}
	return nil
}

// send sends a message of 8 bytes.
func (s *benchSide) send(message []byte) error {
	_, err := s.qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: message})
	return err
}

// next waits for n receives.
func (s *benchSide) next(ctx context.Context, wcs []verbs.WC) error {
	n, err := s.rcq.PollWait(ctx, wcs)
	for _, wc := range wcs[:n] {
		if err := wc.Err(); err != nil {
			return err
		}
	}
	return err
}

// BenchmarkLatency sends 8 bytes there and back, by each device and by TCP in turns, so that other
// load of the machine disturbs all alike. Reported are the medians of the turns, of the time and
// the processor time of a round trip, and of the ratio of its time to TCP's in the same turn.
func BenchmarkLatency(b *testing.B) {
	const turn = 256 // round trips
	type end struct {
		name      string
		exchange  func() error
		took, cpu []float64 // µs of each turn
	}
	var ends []*end
	for _, n := range benchNetworks {
		devs := benchDevices(b, n.network())
		x, y := benchPair(b, devs, 4096)
		message := []byte("8 bytes.")
		for _, s := range []*benchSide{x, y} {
			if err := s.recv(8); err != nil {
				b.Fatal(err)
			}
		}
		go y.echo(b.Context(), message)
		c, peer := benchRsock(b, devs)
		go echo(peer, 8)
		buf := make([]byte, 8)
		ends = append(ends,
			&end{name: n.name, exchange: func() error { return x.exchange(b.Context(), message) }},
			&end{name: n.name + "-rsock", exchange: func() error { return exchange(c, buf) }})
	}
	c := benchTCP(b)
	go echo(c[1], 8)
	buf := make([]byte, 8)
	ends = append(ends, &end{name: "tcp", exchange: func() error { return exchange(c[0], buf) }})
	for b.Loop() {
		for _, e := range ends {
			before, begin := processorTime(), time.Now()
			for range turn {
				if err := e.exchange(); err != nil {
					b.Fatal(e.name, err)
				}
			}
			took := time.Since(begin)
			e.took = append(e.took, float64(took.Nanoseconds())/1e3/turn)
			e.cpu = append(e.cpu, float64((processorTime()-before).Nanoseconds())/1e3/turn)
		}
	}
	tcp := ends[len(ends)-1]
	for _, e := range ends {
		ratio := make([]float64, len(e.took))
		for i := range ratio {
			ratio[i] = e.took[i] / tcp.took[i]
		}
		b.ReportMetric(median(e.took), e.name+"-µs")
		b.ReportMetric(median(e.cpu), e.name+"-cpu-µs")
		if e != tcp {
			b.ReportMetric(median(ratio), e.name+"/tcp")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// median sorts the samples.
func median(samples []float64) float64 {
	slices.Sort(samples)
	return samples[len(samples)/2]
}

// exchange sends a message and waits for the one that comes back.
func (s *benchSide) exchange(ctx context.Context, message []byte) error {
	if err := s.send(message); err != nil {
		return err
	}
	var wcs [1]verbs.WC
	if err := s.next(ctx, wcs[:]); err != nil {
		return err
	}
	return s.recv(1)
}

// echo answers messages until the device is closed.
func (s *benchSide) echo(ctx context.Context, message []byte) {
	for {
		var wcs [1]verbs.WC
		if s.next(ctx, wcs[:]) != nil || s.recv(1) != nil || s.send(message) != nil {
			return
		}
	}
}

// benchRsock connects two devices by package rsock.
func benchRsock(b *testing.B, devs [2]*soft.Device) (x, y net.Conn) {
	b.Helper()
	var transports [2]*cm.Transport
	for i, d := range devs {
		transports[i] = &cm.Transport{Host: d}
		b.Cleanup(func() { transports[i].Close() })
	}
	l := must((&rsock.ListenConfig{Transport: transports[1]}).Listen(b.Context(), "rdma", benchB+":7471"))(b)
	defer l.Close()
	x = must((&rsock.Dialer{Transport: transports[0]}).Dial("rdma", benchB+":7471"))(b)
	y = must(l.Accept())(b)
	b.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}

// BenchmarkBandwidth transfers 64 KiB at a time, 16 at most before the first has arrived.
func BenchmarkBandwidth(b *testing.B) {
	const size, depth = 64 << 10, 16
	for _, n := range benchNetworks {
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			name := map[verbs.Opcode]string{verbs.OpRDMAWrite: "write", verbs.OpRDMARead: "read"}[op]
			b.Run(n.name+"/"+name, func(b *testing.B) {
				devs := benchDevices(b, n.network())
				x, y := benchPair(b, devs, depth*size)
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				b.SetBytes(size)
				var wcs [depth]verbs.WC
				u := usage{devs: devs[:]}
				u.begin(b)
				for posted, done := 0, 0; done < b.N; {
					for ; posted < b.N && posted-done < depth; posted++ {
						off := posted % depth * size
						if _, err := x.qp.PostSend(verbs.SendWR{
							Opcode: op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{x.mr.SGE(off, size)},
							RemoteAddr: y.mr.Addr() + uint64(off), RKey: y.mr.RKey(),
						}); err != nil {
							b.Fatal(err)
						}
					}
					n, err := x.scq.PollWait(ctx, wcs[:])
					if err != nil {
						b.Fatal(err)
					}
					for _, wc := range wcs[:n] {
						if err := wc.Err(); err != nil {
							b.Fatal(err)
						}
					}
					done += n
				}
				u.report(b, size)
			})
		}
	}
	b.Run("tcp", func(b *testing.B) {
		c := benchTCP(b)
		received := make(chan error, 1)
		go func() {
			buf := make([]byte, size)
			var err error
			for i := 0; i < b.N && err == nil; i++ {
				_, err = io.ReadFull(c[1], buf)
			}
			received <- err
		}()
		b.SetBytes(size)
		buf := make([]byte, size)
		var u usage
		u.begin(b)
		for range b.N {
			if _, err := c[0].Write(buf); err != nil {
				b.Fatal(err)
			}
		}
		if err := <-received; err != nil {
			b.Fatal(err)
		}
		u.report(b, size)
	})
}

// BenchmarkConnections sends 8 bytes there and back on each of 1,000 connections at the same time.
func BenchmarkConnections(b *testing.B) {
	const conns = 1000
	for _, n := range benchNetworks {
		b.Run(n.name, func(b *testing.B) {
			devs := benchDevices(b, n.network())
			o := rsock.Options{ReadBuffer: 4096, WriteBuffer: 4096, SendQueue: 16, RecvQueue: 16}
			var transports [2]*cm.Transport
			for i, d := range devs {
				transports[i] = &cm.Transport{Host: d}
				b.Cleanup(func() { transports[i].Close() })
			}
			l := must((&rsock.ListenConfig{Options: o, Transport: transports[1]}).Listen(b.Context(), "rdma", benchB+":7471"))(b)
			d := &rsock.Dialer{Options: o, Transport: transports[0]}
			benchConnections(b, conns, l, devs[:], func() (net.Conn, error) { return d.Dial("rdma", benchB+":7471") })
		})
	}
	b.Run("tcp", func(b *testing.B) {
		l := must(net.Listen("tcp", "127.0.0.1:0"))(b)
		benchConnections(b, conns, l, nil, func() (net.Conn, error) { return net.Dial("tcp", l.Addr().String()) })
	})
}

// benchConnections measures a message there and back on all connections.
func benchConnections(b *testing.B, conns int, l net.Listener, devs []*soft.Device, dial func() (net.Conn, error)) {
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go echo(c, 8)
		}
	}()
	var open []net.Conn
	defer func() {
		var wg sync.WaitGroup
		for _, c := range open {
			wg.Go(func() { c.Close() })
		}
		wg.Wait()
	}()
	for range conns {
		open = append(open, must(dial())(b))
	}
	failed := make(chan error, conns)
	var done sync.WaitGroup
	round := func(n int) {
		for _, c := range open {
			done.Go(func() {
				buf := make([]byte, 8)
				for range n {
					if err := exchange(c, buf); err != nil {
						failed <- err
						return
					}
				}
			})
		}
		done.Wait()
	}
	round(1)
	u := usage{devs: devs}
	u.begin(b)
	round((b.N + conns - 1) / conns)
	u.report(b, 8)
	select {
	case err := <-failed:
		b.Fatal(err)
	default:
	}
}

// benchTCP connects by TCP.
func benchTCP(b *testing.B) (c [2]net.Conn) {
	b.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(b)
	defer l.Close()
	c[0] = must(net.Dial("tcp", l.Addr().String()))(b)
	c[1] = must(l.Accept())(b)
	b.Cleanup(func() { c[0].Close(); c[1].Close() })
	return c
}

// echo sends back messages of n bytes until the connection ends.
func echo(c net.Conn, n int) {
	defer c.Close()
	for buf := make([]byte, n); ; {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(buf); err != nil {
			return
		}
	}
}

// exchange sends a message and waits for the one that comes back.
func exchange(c net.Conn, message []byte) error {
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(c, message)
	return err
}
