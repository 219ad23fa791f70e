package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs perf, for kong. Options have perftest's letters.
type Cmd struct {
	Server   serverCmd `cmd:"" help:"Serve clients, with any test, until interrupted."`
	Send     op        `kong:"cmd,set='op=send',set='what=SENDs',set='lat=2',set='bw=65536',help='SEND: ib_send_lat and ib_send_bw.'"`
	Write    op        `kong:"cmd,set='op=write',set='what=RDMA WRITEs',set='lat=2',set='bw=65536',help='RDMA WRITE: ib_write_lat and ib_write_bw.'"`
	WriteImm op        `kong:"cmd,name='write-imm',set='op=write-imm',set='what=RDMA WRITEs with immediate',set='lat=2',set='bw=65536',help='RDMA WRITE with immediate, which takes a receive of the peer.'"`
	Read     op        `kong:"cmd,set='op=read',set='what=RDMA READs',set='lat=2',set='bw=65536',help='RDMA READ: ib_read_lat and ib_read_bw.'"`
	FetchAdd op        `kong:"cmd,name='fetch-add',set='op=fetch-add',set='what=atomic fetch and add',set='lat=8',set='bw=8',help='Atomic fetch and add: ib_atomic_lat and ib_atomic_bw -A FETCH_AND_ADD.'"`
	CmpSwap  op        `kong:"cmd,name='cmp-swap',set='op=cmp-swap',set='what=atomic compare and swap',set='lat=8',set='bw=8',help='Atomic compare and swap: ib_atomic_lat and ib_atomic_bw -A CMP_AND_SWAP.'"`
	UD       op        `kong:"cmd,name='ud',set='op=ud',set='what=datagrams',set='lat=2',set='bw=1024',help='SEND of datagrams, which may be lost: ib_send_lat and ib_send_bw -c UD.'"`
}

// op are the tests of an operation, whose names and sizes are variables of kong.
type op struct {
	Lat latCmd `kong:"cmd,set='iters=1000',help='Latency of ${what}.'"`
	BW  bwCmd  `kong:"cmd,name='bw',set='iters=5000',help='Bandwidth of ${what}.'"`
}

type commonFlags struct {
	Port    int    `short:"p" default:"18515" help:"The server's port."`
	Device  string `short:"d" name:"ib-dev" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: routing's choice; a server's: all)."`
	JSON    bool   `help:"Print results as JSON."`
	Verbose bool   `short:"v" help:"Print on standard error when a run begins."`
	Once    bool   `help:"As a server, serve one client and end."`
}

type flags struct {
	Host string `arg:"" optional:"" placeholder:"HOST[:PORT]" help:"Server to connect to; without it, be the server."`
	commonFlags
	All       bool          `short:"a" help:"Test all sizes, powers of 2 from 2 to 8 MiB; of datagrams to the MTU."`
	Iters     int           `short:"n" default:"${iters}" help:"Messages to send on each QP."`
	Duration  seconds       `short:"D" placeholder:"SECONDS" help:"Send for this long, instead of -n."`
	Events    bool          `short:"e" help:"Sleep until a completion arrives instead of polling."`
	Inline    cli.Size      `short:"I" default:"0" placeholder:"BYTES" help:"Copy messages of at most this many bytes into the request."`
	TClass    uint8         `name:"tclass" default:"0" help:"Traffic class of the packets."`
	PKeyIndex *int          `name:"pkey-index" aliases:"pkey_index" placeholder:"INDEX" help:"Index of the QPs' P_Key in this port's table; the server takes the same partition's (default: of the connection manager, 0 for datagrams)."`
	Timeout   time.Duration `default:"30s" help:"Give up when nothing moves for this long."`
	Interval  seconds       `placeholder:"SECONDS" help:"Report at this interval what this side has sent."`
}

type depthFlags struct {
	QPs     int  `short:"q" name:"qp" default:"1" help:"QPs to use."`
	TxDepth int  `short:"t" default:"128" help:"Messages in flight on each QP."`
	RxDepth int  `short:"r" default:"512" help:"Receives posted on each QP."`
	List    int  `short:"l" name:"post-list" default:"1" help:"Messages to post at a time."`
	CQMod   *int `short:"Q" name:"cq-mod" help:"Messages a completion; at most the tx-depth (default: 100, or 1 of more than 8 KiB)."`
	Both    bool `short:"b" name:"bidirectional" help:"Let the server send as well."`
}

type latCmd struct {
	flags
	Size   cli.Size      `short:"s" default:"${lat}" help:"Bytes a message."`
	MaxLat time.Duration `placeholder:"TIME" help:"Fail if the median latency is above this."`
	MaxP99 time.Duration `name:"max-p99" placeholder:"TIME" help:"Fail if the 99th percentile of the latency is above this."`
}

type bwCmd struct {
	flags
	Size cli.Size `short:"s" default:"${bw}" help:"Bytes a message."`
	depthFlags
	MinBW float64 `name:"min-bw" placeholder:"GBIT" help:"Fail if the bandwidth is below this, in Gbit/s."`
}

// The examples of tests; ${op} is the operation.
func (c *latCmd) Help() string {
	return `Examples:

  verbs perf ${op} lat 10.9.0.1
  verbs perf ${op} lat 10.9.0.1 -D 60 --interval 1
  verbs perf ${op} lat 10.9.0.1 --max-p99 50us || echo slow`
}

func (c *bwCmd) Help() string {
	return `Examples:

  verbs perf ${op} bw 10.9.0.1 -q 4
  verbs perf ${op} bw 10.9.0.1 -D 60 --interval 1 --json >result.json
  verbs perf ${op} bw 10.9.0.1 --min-bw 10 || echo slow`
}

func (c *Cmd) Help() string {
	return `Start verbs perf server on one machine, and a test on the other. The tests are
perftest's, with the letters of its options, but the peer must be verbs perf.

lat measures one message at a time. For send, write, write-imm and ud a latency is half
of the time there and back; for read and atomics it is that of the operation.
bw sends as many messages as the queues hold.

--json prints one object: version, kernel, start, arguments, parameters, limits,
results with histograms and intervals, and in failed which limits they exceed. A
server prints an object a line, for each run.

Examples:

  verbs perf server                          serve clients, on all devices
  verbs perf server --once                   serve one, and end
  verbs perf send lat 10.9.0.1               latency of SENDs of 2 bytes
  verbs perf write bw 10.9.0.1 -s 1M -q 4    bandwidth of WRITEs, on 4 QPs`
}

// cqMod returns how many messages share a completion: by default as many as in perftest, and
// 1 if messages are long, since the last of many would complete long after the first.
func (d *depthFlags) cqMod(long bool) int {
	n := 100
	switch {
	case d.CQMod != nil:
		n = *d.CQMod
	case long:
		n = 1
	}
	return min(n, d.TxDepth)
}

// latDepths are the depths of latency tests, which have one message in flight.
var latDepths = depthFlags{QPs: 1, TxDepth: 128, RxDepth: 16, List: 1}

func (c *latCmd) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, int(c.Size), latDepths,
		limit{"max_lat_us", "median latency: %.2f us is above the limit, %g us", float64(c.MaxLat) / 1e3, false,
			func(r *result) float64 { return r.Latency.P50 }},
		limit{"max_p99_us", "99th percentile of the latency: %.2f us is above the limit, %g us", float64(c.MaxP99) / 1e3, false,
			func(r *result) float64 { return r.Latency.P99 }})
}

func (c *bwCmd) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, int(c.Size), c.depthFlags,
		limit{"min_bw_gbit_per_second", "bandwidth: %.3f Gbit/s is below the limit, %g Gbit/s", c.MinBW, true,
			func(r *result) float64 { return r.Bandwidth.Gbit }})
}

// run makes the runs of any test, which the names of the command identify, and checks the
// results.
func (c *flags) run(ctx context.Context, k *kong.Context, size int, depth depthFlags, limits ...limit) error {
	if c.Host == "" {
		return c.serve(ctx, k)
	}
	w, err := c.work(k, size, depth)
	if err != nil {
		return cli.Usage(err)
	}
	doc := newDocument(k.Args, w, c.All, time.Duration(c.Interval), limits)
	ctl, err := connect(ctx, c.Device, cli.JoinPort(c.Host, c.Port), c.TClass)
	if err != nil {
		return err
	}
	defer ctl.Conn.Close()
	doc.Results, err = c.runAll(ctx, k, w, ctl)
	failed := failures(doc.Results, limits)
	if err != nil {
		failed = append(failed, err)
	}
	if c.JSON && len(doc.Results) > 0 {
		for _, err := range failed {
			doc.Failed = append(doc.Failed, err.Error())
		}
		failed = append(failed, cli.WriteJSON(k.Stdout, doc))
	}
	return errors.Join(failed...)
}

// work returns the first run. Its errors are of usage.
func (c *flags) work(k *kong.Context, size int, depth depthFlags) (work, error) {
	w := work{
		Version: version, Op: k.Selected().Parent.Name, Mode: k.Selected().Name, Size: size,
		Iters: c.Iters, Duration: time.Duration(c.Duration),
		QPs: depth.QPs, TxDepth: depth.TxDepth, RxDepth: depth.RxDepth, List: depth.List,
		CQMod: depth.cqMod(c.All || size > 8<<10), Inline: int(c.Inline), Both: depth.Both, Events: c.Events,
		TClass: c.TClass, PKeyIndex: c.PKeyIndex, Timeout: c.Timeout,
	}
	if c.All {
		w.Size = powers()[0]
	}
	if c.Duration != 0 {
		w.Iters = 0
	}
	if err := w.validate(); err != nil {
		return w, err
	}
	switch {
	case c.Once:
		return w, errors.New("once: for servers only")
	case c.Interval < 0:
		return w, fmt.Errorf("interval: %v is below 0", time.Duration(c.Interval))
	}
	return w, nil
}

// runAll makes a run of w, or with --all one of each size, and prints the results as they come.
func (c *flags) runAll(ctx context.Context, k *kong.Context, w work, ctl *control) (results []*result, err error) {
	text := k.Stdout
	if c.JSON {
		text = io.Discard
	}
	fmt.Fprintln(text, heading(w.Op, w.Mode))
	var intervals []interval
	onStart := func(s *session) (onEnd func()) {
		c.logStart(k, s)
		intervals = nil
		return s.reportIntervals(time.Duration(c.Interval), func(i interval) {
			intervals = append(intervals, i)
			fmt.Fprintln(text, i)
		})
	}
	sizes := []int{w.Size}
	if c.All {
		sizes = powers()
	}
	for _, w.Size = range sizes {
		r, err := run(ctx, w, ctl, true, onStart)
		switch {
		case c.All && errors.Is(err, errMTU) && len(results) > 0:
			return results, nil
		case err != nil:
			return results, err
		}
		r.Intervals = intervals
		results = append(results, r)
		fmt.Fprintln(text, r.line(cli.Width(k.Stdout)))
	}
	return results, nil
}

func (c *commonFlags) logStart(k *kong.Context, s *session) {
	if c.Verbose {
		fmt.Fprintf(k.Stderr, "%v with %v on %s begins\n", &s.work, s.ctl.Conn.RemoteAddr(), cli.Printable(s.path.Device.Name))
	}
}

type serverCmd struct{ commonFlags }

func (c *serverCmd) Help() string {
	return `Examples:

  verbs perf server                      on all devices, IPv4 and IPv6
  verbs perf server --once --json        for one client, which a script starts
  verbs perf server -d rxe0 -p 18516     on one, at another port`
}

func (c *serverCmd) Run(ctx context.Context, k *kong.Context) error { return c.serve(ctx, k) }

func (c *commonFlags) serve(ctx context.Context, k *kong.Context) error {
	addrs := []string{fmt.Sprintf(":%d", c.Port)}
	if c.Device != "" {
		locals, err := cli.DeviceAddrs(c.Device)
		if err != nil {
			return err
		}
		addrs = nil
		for _, a := range locals {
			if a.IsLinkLocalUnicast() && len(locals) > 1 { // which has no zone, and which nobody dials
				continue
			}
			addrs = append(addrs, net.JoinHostPort(a.String(), strconv.Itoa(c.Port)))
		}
	}
	var mu sync.Mutex
	v := server{
		onStart: func(s *session) (onEnd func()) { c.logStart(k, s); return func() {} },
		log:     func(format string, args ...any) { fmt.Fprintln(k.Stderr, cli.Printable(fmt.Sprintf(format, args...))) },
		report: func(r *result) {
			mu.Lock()
			defer mu.Unlock()
			if c.JSON {
				cli.WriteJSONLine(k.Stdout, r)
			} else {
				fmt.Fprintln(k.Stdout, cli.Printable(r.served()))
			}
		},
	}
	return v.serve(ctx, addrs, c.Once)
}

// powers returns the message sizes of -a, powers of 2.
func powers() (all []int) {
	for n := 2; n <= maxSize; n *= 2 {
		all = append(all, n)
	}
	return all
}

// seconds is a duration; a number without a unit is in seconds.
type seconds time.Duration

func (s *seconds) UnmarshalText(b []byte) error {
	d, err := time.ParseDuration(string(b))
	if err != nil {
		d, err = time.ParseDuration(string(b) + "s")
	}
	*s = seconds(d)
	return err
}
