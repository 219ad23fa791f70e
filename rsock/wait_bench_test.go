//go:build linux

package rsock_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/soft"
)

// waitSpins are the waits that BenchmarkWait compares.
var waitSpins = []struct {
	name string
	time time.Duration
}{{"never", -1}, {"always", time.Second}, {"default", 0}}

// BenchmarkWait measures requests and answers of rsock between two processes, where waits poll
// never, as long as answers took, or as the default has it, on a machine that has nothing else
// to do and on one whose processors all have. The three take turns; reported are the median of
// each, and of the ratio of the default's time to the others' in the same turn with its 95 %
// interval. No default may lose more than a tenth to the better of never and always.
func BenchmarkWait(b *testing.B) {
	labtest.RequireBoth(b)
	devices := []string{"soft"}
	if labtest.Lab {
		devices = []string{labtest.RXE, labtest.SIW}
	}
	for _, device := range devices {
		for _, hogs := range []int{0, runtime.NumCPU()} {
			for _, conns := range []int{1, 16} {
				b.Run(fmt.Sprintf("%s/busy=%t/conns=%d", device, hogs > 0, conns), func(b *testing.B) { benchWait(b, device, hogs, conns) })
			}
		}
	}
}

func benchWait(b *testing.B, device string, hogs, conns int) {
	for range hogs {
		startChild(b, "hog")
	}
	var clients []*child
	for i, s := range waitSpins {
		args := []string{device, s.time.String(), strconv.Itoa(i), strconv.Itoa(conns)}
		startChild(b, "serve", args...)
		clients = append(clients, startChild(b, "client", args...))
	}
	times := make([][]float64, len(clients))
	for b.Loop() {
		for i, c := range clients {
			times[i] = append(times[i], c.ask(b))
		}
	}
	last := len(clients) - 1
	for i, s := range waitSpins {
		med, _, _ := median(times[i])
		b.ReportMetric(med/1e3, s.name+"-us")
		if i < last {
			for j := range times[i] {
				times[i][j] = times[last][j] / times[i][j]
			}
			med, low, high := median(times[i])
			b.ReportMetric(med, "default/"+s.name)
			b.ReportMetric(low, "default/"+s.name+"-low")
			b.ReportMetric(high, "default/"+s.name+"-high")
		}
	}
	b.ReportMetric(0, "ns/op")
}

// median returns the median and its 95 % interval, by the order of the samples.
func median(samples []float64) (m, low, high float64) {
	s := slices.Sorted(slices.Values(samples))
	n := len(s)
	d := int(math.Sqrt(float64(n)))
	return s[n/2], s[max(0, n/2-d)], s[min(n-1, n/2+d)]
}

// turn is how many requests a client sends when its turn comes.
const turn = 256

// benchClient opens connections and, for each byte that it reads from its standard input, prints
// the nanoseconds that each of a turn's requests took.
func benchClient(t *testing.T, d *rsock.Dialer, remote string, conns int) {
	var left atomic.Int64
	start, done := make(chan struct{}), make(chan struct{})
	for range conns {
		c := labtest.Must(d.Dial("rdma", remote))(t)
		go func() {
			buf := make([]byte, 64)
			for range start {
				for left.Add(-1) >= 0 {
					if err := request(c, buf); err != nil {
						fmt.Println(err)
						os.Exit(1)
					}
				}
				done <- struct{}{}
			}
		}()
	}
	fmt.Println("ready")
	for {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			os.Exit(0)
		}
		left.Store(turn)
		begin := time.Now()
		for range conns {
			start <- struct{}{}
		}
		for range conns {
			<-done
		}
		fmt.Println(time.Since(begin).Nanoseconds() / turn)
	}
}

// request sends a message and waits for the one that comes back.
func request(c net.Conn, message []byte) error {
	if _, err := c.Write(message); err != nil {
		return err
	}
	_, err := io.ReadFull(c, message)
	return err
}

// benchTransport makes a device in user space with an address, and a transport of it.
func benchTransport(t testing.TB, addr string) *cm.Transport {
	d := labtest.Must(soft.New(soft.Options{Host: "bench" + addr, Addrs: []netip.Addr{netip.MustParseAddr(addr)}, Port: 14792}))(t)
	t.Cleanup(func() { d.Close() })
	tr := &cm.Transport{Host: d}
	t.Cleanup(func() { tr.Close() })
	return tr
}

// child is another process of the benchmark.
type child struct {
	stdin io.Writer
	out   *bufio.Scanner
}

// startChild starts this program as a child that does what TestBenchChild says, waits until it
// does, and ends it with the benchmark.
func startChild(b *testing.B, role string, args ...string) *child {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBenchChild$", "-test.v")
	cmd.Env = append(os.Environ(), "BENCH_CHILD="+role, "BENCH_ARGS="+strings.Join(args, " "))
	stdin, out := labtest.Must(cmd.StdinPipe())(b), labtest.Must(cmd.StdoutPipe())(b)
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { stdin.Close(); cmd.Process.Kill(); cmd.Wait() })
	c := &child{stdin, bufio.NewScanner(out)}
	for c.out.Scan() {
		if c.out.Text() == "ready" {
			return c
		}
	}
	b.Fatal("the child has ended")
	return nil
}

// ask gives a client its turn.
func (c *child) ask(b *testing.B) (ns float64) {
	labtest.Must(c.stdin.Write([]byte{0}))(b)
	c.out.Scan()
	return labtest.Must(strconv.ParseFloat(c.out.Text(), 64))(b)
}

// TestBenchChild is the other processes of BenchmarkWait.
func TestBenchChild(t *testing.T) {
	role := os.Getenv("BENCH_CHILD")
	var device, spin string
	var number, conns int
	var o rsock.Options
	var tr *cm.Transport
	var remote string
	if role == "serve" || role == "client" {
		labtest.Must(fmt.Sscan(os.Getenv("BENCH_ARGS"), &device, &spin, &number, &conns))(t)
		o.SpinTime = labtest.Must(time.ParseDuration(spin))(t)
		remote = labtest.AddrOf(device)
		if device == "soft" {
			remote = fmt.Sprintf("127.0.77.%d", 10+number)
			tr = benchTransport(t, map[string]string{"serve": remote, "client": fmt.Sprintf("127.0.77.%d", 20+number)}[role])
		}
		remote = fmt.Sprintf("%s:%d", remote, 7480+number)
	}
	switch role {
	case "hog":
		fmt.Println("ready")
		var ended atomic.Bool
		go func() {
			os.Stdin.Read(make([]byte, 1)) // until the parent ends
			ended.Store(true)
		}()
		for !ended.Load() {
		}
		os.Exit(0)
	case "client":
		benchClient(t, &rsock.Dialer{Options: o, Transport: tr}, remote, conns)
	case "serve":
		l := labtest.Must((&rsock.ListenConfig{Options: o, Transport: tr}).Listen(t.Context(), "rdma", remote))(t)
		fmt.Println("ready")
		go func() {
			os.Stdin.Read(make([]byte, 1))
			os.Exit(0)
		}()
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		}
	}
}
