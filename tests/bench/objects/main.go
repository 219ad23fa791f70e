// Command objects measures an S3 server of package s3rdma: objects whose bytes go by RDMA, beside bodies
// of HTTP over TCP and over rsock, through the same net/http client and server.
//
//	objects -device rxe0
//
// With -gateways it measures hipobj-rc-v2 instead, of builds of versitygw's program vgwrdma that store
// objects in files: the one of its makers, with C++, and that of tests/s3/versitygw, without.
//
//	objects -device rxe0 -gateways C++=build/judges/vgwrdma=0:0:0:0,Go=build/judges/versitygw/vgwrdma=rxe0
//
// The last field is the gateway's option --rc-gid-hint.
//
// With -heap the server's garbage collector has work, as if it kept an index. A device in user space needs
// no emulated processor for that:
//
//	VERBS_SOFT=127.0.0.1 objects -device soft0 -soft 127.0.0.2 -heap 8
//
// The server is another process of the same program, so that the processor time of both sides can be told
// apart; the work of the kernel's softirqs and threads is in neither. Ways take turns, and the rows have
// the median of the rounds.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	_ "github.com/goverbs/verbs/provider/mlx5"
	_ "github.com/goverbs/verbs/provider/rxe"
	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/s3rdma"
	_ "github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
)

var (
	device  = flag.String("device", "", "name of the device")
	sizes   = flag.String("sizes", "4096,1048576,67108864", "bytes of objects")
	clients = flag.String("clients", "1,64", "clients at a time")
	rounds  = flag.Int("rounds", 5, "of each way")
	lasting = flag.Duration("lasting", 300*time.Millisecond, "of a round, and one object of each client at least")
	serve   = flag.Bool("serve", false, "be the server")
	heap    = flag.Int("heap", 0, "`GiB` of small objects that the server keeps, and replaces all the time")
	memory  = flag.Int("memory", 512, "`MiB` that transfers of the server have: others wait")
	timeout = flag.Int("timeout", 0, "Fabric.Timeout of the server: processors that are late need 20")
	soft    = flag.String("soft", "", "`address` of the server's device in user space")
	by      = flag.String("by", "TCP,rsock,DC,RC", "ways to measure: an emulated ConnectX has no room for rsock's queues of 1,000 clients")
	others  = flag.String("gateways", "", "`NAME=PROGRAM=HINT,...` of versitygw to measure")
)

// usage is what a process has used.
type usage struct {
	CPU         time.Duration
	Collections int64
	Paused      time.Duration // by collections
	RDMA        s3rdma.Stats  // of the server
}

func used() usage {
	var u unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &u)
	var gc debug.GCStats
	debug.ReadGCStats(&gc)
	return usage{CPU: time.Duration(u.Utime.Nano() + u.Stime.Nano()), Collections: gc.NumGC, Paused: gc.PauseTotal}
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		log.Fatal(err)
	}
}

func run() error {
	dev, err := uverbs.Find(*device)
	if err != nil {
		return err
	}
	ctx, err := dev.Open()
	if err != nil {
		return err
	}
	defer ctx.Close()
	gid, err := ctx.FindGID(1, netip.Addr{})
	if err != nil {
		return err
	}
	addr := gid.GID.Addr()
	if *serve {
		keep(*heap << 30)
		return server(ctx, addr)
	}
	if *others != "" {
		return gateways(ctx, addr)
	}
	return client(dev.Name, addr, ctx.Probe(uverbs.FeatureDC) == nil)
}

// server serves one object of each size asked for, and forgets what is put.
func server(dev *uverbs.Context, addr netip.Addr) error {
	// All clients are one account's, and none is to use HTTP since others are many, or as it connects
	// again, after a minute without transfers, before the server has seen the end of the connection.
	n := slices.Max(numbers(*clients))
	opt := s3rdma.ServerOptions{Device: dev, Memory: *memory << 20, Fabric: s3rdma.Fabric{Timeout: *timeout}}
	opt.Limits = s3rdma.Limits{Transfers: n, AccountTransfers: n, AccountBytes: 1 << 40, Connections: 2 * n, AccountConnections: 2 * n, Wait: time.Minute}
	srv, err := s3rdma.NewServer(opt)
	if err != nil {
		return err
	}
	object := bytes.Repeat([]byte("a block of 32 bytes, repeated..."), 1<<27/32)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bucket/{size}", func(w http.ResponseWriter, r *http.Request) {
		n, _ := strconv.Atoi(r.PathValue("size"))
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(object[:n]))
	})
	mux.HandleFunc("PUT /bucket/{size}", func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); err != nil || strconv.FormatInt(n, 10) != r.PathValue("size") {
			http.Error(w, fmt.Sprintf("%d bytes, %v", n, err), http.StatusInternalServerError)
		}
	})
	handler := http.NewServeMux()
	handler.HandleFunc("GET /usage", func(w http.ResponseWriter, _ *http.Request) {
		u := used()
		u.RDMA = srv.Stats()
		json.NewEncoder(w).Encode(u)
	})
	handler.Handle("/", srv.Handler(mux))
	tcp, err := net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return err
	}
	listen := rsock.ListenConfig{Backlog: 4096, HandshakeTimeout: -1} // all clients dial at once
	rdma, err := listen.Listen(context.Background(), "rdma", netip.AddrPortFrom(addr, 0).String())
	if err != nil {
		return err
	}
	fmt.Println(tcp.Addr(), rdma.Addr())
	go http.Serve(rdma, handler)
	return http.Serve(tcp, handler)
}

// way is how bytes of objects go.
type way struct {
	name string
	// move moves an object, and returns when the program had the first byte, or for PUT the answer.
	move func(op string, size int, buf []byte) (first time.Time, err error)
	// used returns the processor time of the server.
	used func() (time.Duration, error)
}

// web is a way by a client of net/http. Another one asks for the server's usage, without an offer of
// memory.
func web(name, url string, c, asks *http.Client) way {
	return way{name,
		func(op string, size int, buf []byte) (time.Time, error) { return move(c, url, op, size, buf) },
		func() (time.Duration, error) {
			u, err := serverUsed(asks, url)
			return u.CPU, err
		},
	}
}

func serverUsed(c *http.Client, url string) (u usage, err error) {
	resp, err := c.Get(url + "/usage")
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&u)
		resp.Body.Close()
	}
	return u, err
}

func client(device string, addr netip.Addr, dc bool) error {
	child := exec.Command(os.Args[0], append([]string{"-serve"}, os.Args[1:]...)...)
	child.Stderr = os.Stderr
	if *soft != "" {
		child.Env = append(os.Environ(), "VERBS_SOFT="+*soft)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	if err := child.Start(); err != nil {
		return err
	}
	defer child.Wait()
	defer child.Process.Kill()
	var tcp, rdma string
	if _, err := fmt.Fscan(out, &tcp, &rdma); err != nil {
		return err
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: addr.AsSlice()}} // servers send to the address of requests
	base := &http.Transport{DialContext: dialer.DialContext, MaxIdleConnsPerHost: slices.Max(numbers(*clients)), DisableCompression: true}
	var streams rsock.Dialer
	byTCP := &http.Client{Transport: base}
	byStream := &http.Client{Transport: &http.Transport{DialContext: streams.DialContext, MaxIdleConnsPerHost: slices.Max(numbers(*clients)), DisableCompression: true}}
	ways := []way{web("TCP", "http://"+tcp, byTCP, byTCP), web("rsock", "http://"+rdma, byStream, byStream)}
	for _, name := range []string{"DC", "RC"} {
		if name == "DC" && !dc {
			continue
		}
		c, err := s3rdma.NewClient(s3rdma.ClientOptions{Device: device, RC: name == "RC", Memory: 8 << 30, GetSize: 64 << 20})
		if err != nil {
			return err
		}
		ways = append(ways, web(name, "http://"+tcp, &http.Client{Transport: &s3rdma.Transport{Base: base, Client: c}}, byTCP))
		defer func() { fmt.Printf("%s: %+v\n", name, c.Stats()) }()
	}
	wanted := strings.Split(*by, ",")
	if err := table(device, slices.DeleteFunc(ways, func(w way) bool { return !slices.Contains(wanted, w.name) })); err != nil {
		return err
	}
	u, err := serverUsed(byTCP, "http://"+tcp)
	fmt.Printf("\nserver: %+v\n", u)
	return err
}

// table measures ways by turns.
func table(device string, ways []way) error {
	fmt.Printf("%s, %d rounds of %v\n\n", device, *rounds, *lasting)
	fmt.Println("| | bytes | clients | by | MB/s | of rounds | p50 | p99 | p99.9 | first byte, p50 | client, CPU s/GB | server, CPU s/GB | objects |")
	fmt.Println("|---|--:|--:|---|--:|---|--:|--:|--:|--:|--:|--:|--:|")
	for _, op := range []string{"PUT", "GET"} {
		for _, size := range numbers(*sizes) {
			for _, n := range numbers(*clients) {
				all := make([][]round, len(ways))
				for i := range *rounds + 1 { // the first warms up
					for j, w := range ways {
						r, err := measure(w, op, size, n)
						if err != nil {
							return fmt.Errorf("%s %d by %s: %w", op, size, w.name, err)
						}
						if i > 0 {
							all[j] = append(all[j], r)
						}
					}
				}
				for j, w := range ways {
					row(op, size, n, w.name, all[j])
				}
			}
		}
	}
	return nil
}

func numbers(list string) (all []int) {
	for _, s := range strings.Split(list, ",") {
		n, err := strconv.Atoi(s)
		if err != nil {
			log.Fatal(err)
		}
		all = append(all, n)
	}
	return all
}

// round is the result of one.
type round struct {
	bytes          int
	elapsed        time.Duration
	client, server time.Duration // processor time
	times, first   []time.Duration
}

// measure lets n clients move objects.
func measure(w way, op string, size, n int) (r round, err error) {
	serverBefore, err := w.used()
	if err != nil {
		return r, err
	}
	before, begin := used(), time.Now()
	var mu sync.Mutex
	var working sync.WaitGroup
	for range n {
		working.Go(func() {
			buf := make([]byte, 1<<20)
			for first := true; first || time.Since(begin) < *lasting; first = false {
				start := time.Now()
				at, e := w.move(op, size, buf)
				took := time.Since(start)
				mu.Lock()
				r.bytes += size
				r.times, r.first = append(r.times, took), append(r.first, at.Sub(start))
				err = cmp.Or(err, e)
				mu.Unlock()
				if e != nil {
					return
				}
			}
		})
	}
	working.Wait()
	r.elapsed, r.client = time.Since(begin), used().CPU-before.CPU
	if err != nil {
		return r, err
	}
	serverAfter, err := w.used()
	r.server = serverAfter - serverBefore
	return r, err
}

var pattern = bytes.Repeat([]byte("a block of 32 bytes, repeated..."), 1<<27/32)

func move(c *http.Client, url, op string, size int, buf []byte) (first time.Time, err error) {
	ctx := s3rdma.WithSize(context.Background(), int64(size))
	var body io.Reader
	if op == "PUT" {
		body = bytes.NewReader(pattern[:size])
	}
	req, err := http.NewRequestWithContext(ctx, op, fmt.Sprintf("%s/bucket/%d", url, size), body)
	if err != nil {
		return first, err
	}
	resp, err := c.Do(req)
	if err != nil {
		return first, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		return first, fmt.Errorf("%s: %s", resp.Status, text)
	}
	if op == "PUT" {
		return time.Now(), nil
	}
	got := 0
	for err == nil {
		var n int
		n, err = resp.Body.Read(buf)
		if got == 0 {
			first = time.Now()
		}
		if !bytes.Equal(buf[:n], pattern[got%32:][:n]) {
			return first, fmt.Errorf("wrong bytes from %d on: %w", got, verbs.ErrRange)
		}
		got += n
	}
	if err != io.EOF || got != size {
		return first, errors.Join(err, fmt.Errorf("%d bytes of %d", got, size))
	}
	return first, nil
}

// row prints the medians of rounds.
func row(op string, size, clients int, by string, all []round) {
	sorted := func(f func(round) float64) (v []float64) {
		for _, r := range all {
			v = append(v, f(r))
		}
		slices.Sort(v)
		return v
	}
	median := func(f func(round) float64) float64 { return sorted(f)[len(all)/2] }
	rate := sorted(func(r round) float64 { return float64(r.bytes) / 1e6 / r.elapsed.Seconds() })
	quantile := func(times func(round) []time.Duration, q float64) time.Duration {
		var v []time.Duration
		for _, r := range all {
			v = append(v, times(r)...)
		}
		slices.Sort(v)
		return v[min(int(q*float64(len(v))), len(v)-1)].Round(10 * time.Microsecond)
	}
	times, first, objects := func(r round) []time.Duration { return r.times }, func(r round) []time.Duration { return r.first }, 0
	for _, r := range all {
		objects += len(r.times)
	}
	perGB := func(cpu func(round) time.Duration) float64 {
		return median(func(r round) float64 { return cpu(r).Seconds() / float64(r.bytes) * 1e9 })
	}
	fmt.Printf("| %s | %d | %d | %s | %.1f | %.1f to %.1f | %v | %v | %v | %v | %.2f | %.2f | %d |\n", op, size, clients, by,
		rate[len(rate)/2], rate[0], rate[len(rate)-1],
		quantile(times, 0.5), quantile(times, 0.99), quantile(times, 0.999), quantile(first, 0.5),
		perGB(func(r round) time.Duration { return r.client }), perGB(func(r round) time.Duration { return r.server }), objects)
}
