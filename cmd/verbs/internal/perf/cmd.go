package perf

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs perf, for kong. Options have perftest's letters.
type Cmd struct {
	Server   serverCmd `cmd:"" help:"Serve clients, whatever they test, until interrupted."`
	Send     messages  `kong:"cmd,set='op=send',set='what=SENDs',help='SEND: ib_send_lat and ib_send_bw.'"`
	Write    messages  `kong:"cmd,set='op=write',set='what=RDMA WRITEs',help='RDMA WRITE: ib_write_lat and ib_write_bw.'"`
	WriteImm messages  `kong:"cmd,name='write-imm',set='op=write-imm',set='what=RDMA WRITEs with immediate',help='RDMA WRITE with immediate, which takes a receive of the other side.'"`
	Read     messages  `kong:"cmd,set='op=read',set='what=RDMA READs',help='RDMA READ: ib_read_lat and ib_read_bw.'"`
	FetchAdd atomics   `kong:"cmd,name='fetch-add',set='op=fetch-add',set='what=atomic fetch and add',help='Atomic fetch and add: ib_atomic_lat and ib_atomic_bw -A FETCH_AND_ADD.'"`
	CmpSwap  atomics   `kong:"cmd,name='cmp-swap',set='op=cmp-swap',set='what=atomic compare and swap',help='Atomic compare and swap: ib_atomic_lat and ib_atomic_bw -A CMP_AND_SWAP.'"`
	UD       datagrams `kong:"cmd,name='ud',set='op=ud',set='what=datagrams',help='SEND of datagrams, which may be lost: ib_send_lat and ib_send_bw -c UD.'"`
}

type messages struct {
	Lat sizedLat `kong:"cmd,set='iters=1000',set='size=2',help='Latency of ${what}.'"`
	BW  sizedBW  `kong:"cmd,name='bw',set='iters=5000',set='size=65536',help='Bandwidth of ${what}.'"`
}

type datagrams struct {
	Lat sizedLat `kong:"cmd,set='iters=1000',set='size=2',help='Latency of ${what}.'"`
	BW  sizedBW  `kong:"cmd,name='bw',set='iters=5000',set='size=1024',help='Bandwidth of ${what}.'"`
}

type atomics struct {
	Lat latCmd `cmd:"" set:"iters=1000" help:"Latency of ${what}."`
	BW  bwCmd  `cmd:"" name:"bw" set:"iters=5000" help:"Bandwidth of ${what}."`
}

type commonFlags struct {
	Port    int    `short:"p" default:"18515" help:"The server's port."`
	Device  string `short:"d" name:"ib-dev" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: routing's choice; a server's: all)."`
	JSON    bool   `xor:"format" help:"Print results as JSON."`
	Verbose bool   `short:"v" help:"Print when a run begins, on standard error."`
	Once    bool   `help:"As a server, serve one client and end."`
}

type flags struct {
	Host string `arg:"" optional:"" placeholder:"HOST[:PORT]" help:"Server to connect to; without one be a server."`
	commonFlags
	CSV      bool          `xor:"format" help:"Print results as CSV, after a line with the names."`
	Iters    int           `short:"n" default:"${iters}" help:"Messages to send on each QP."`
	Duration seconds       `short:"D" placeholder:"SECONDS" help:"Send for this long, instead of -n."`
	Events   bool          `short:"e" help:"Sleep until there is a completion, rather than poll for it."`
	Inline   int           `short:"I" type:"size" default:"0" placeholder:"BYTES" help:"Copy messages of at most this many bytes into the request."`
	TClass   uint8         `name:"tclass" default:"0" help:"Traffic class of the packets."`
	Timeout  time.Duration `default:"30s" help:"Give up when nothing moves for this long."`
	Interval seconds       `placeholder:"SECONDS" help:"Report each time that so much of the run has passed what this side has sent."`
}

type sizeFlags struct {
	Size int  `short:"s" type:"size" default:"${size}" help:"Bytes a message."`
	All  bool `short:"a" help:"Test all sizes, powers of 2 from 2 to 8 MiB; of datagrams to the MTU."`
}

type depthFlags struct {
	QPs     int  `short:"q" name:"qp" default:"1" help:"QPs to use."`
	TxDepth int  `short:"t" default:"128" help:"Messages under way on each QP."`
	RxDepth int  `short:"r" default:"512" help:"Receives posted on each QP."`
	List    int  `short:"l" name:"post-list" default:"1" help:"Messages to post at a time."`
	CQMod   *int `short:"Q" name:"cq-mod" help:"Messages a completion; at most the tx-depth (default: 100, or 1 of more than 8 KiB)."`
	Both    bool `short:"b" name:"bidirectional" help:"Have the server send as well."`
}

// limits are the results that a health check accepts; zero is no limit.
type limits struct {
	MaxLat time.Duration `placeholder:"TIME" help:"Fail if the median latency is above this."`
	MaxP99 time.Duration `name:"max-p99" placeholder:"TIME" help:"Fail if the 99th percentile of the latency is above this."`
}

type leastBW struct {
	MinBW float64 `name:"min-bw" placeholder:"GBIT" help:"Fail if the bandwidth is below this, in Gbit/s."`
}

type latCmd struct {
	flags
	limits
}

type sizedLat struct {
	flags
	sizeFlags
	limits
}

type bwCmd struct {
	flags
	depthFlags
	leastBW
}

type sizedBW struct {
	flags
	sizeFlags
	depthFlags
	leastBW
}

// The examples of tests; ${op} is the operation.
const (
	latExamples = `Examples:

  verbs perf ${op} lat 10.9.0.1
  verbs perf ${op} lat 10.9.0.1 -D 60 --interval 1
  verbs perf ${op} lat 10.9.0.1 --max-p99 50us || echo slow`
	bwExamples = `Examples:

  verbs perf ${op} bw 10.9.0.1 -q 4
  verbs perf ${op} bw 10.9.0.1 -D 60 --interval 1 --json >result.json
  verbs perf ${op} bw 10.9.0.1 --min-bw 10 || echo slow`
	sizedExample = `
  verbs perf ${op} ${mode} 10.9.0.1 -a --csv >sizes.csv`
)

func (c *latCmd) Help() string { return latExamples }
func (c *sizedLat) Help() string {
	return latExamples + strings.Replace(sizedExample, "${mode}", modeLat, 1)
}
func (c *bwCmd) Help() string { return bwExamples }
func (c *sizedBW) Help() string {
	return bwExamples + strings.Replace(sizedExample, "${mode}", modeBW, 1)
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

// check returns an error if the result is worse than a limit.
func (l *limits) check(r *result) error {
	for _, limit := range []struct {
		name string
		most time.Duration
		us   float64
	}{{"median latency", l.MaxLat, r.Latency.P50}, {"99th percentile of the latency", l.MaxP99, r.Latency.P99}} {
		if limit.most > 0 && limit.us > float64(limit.most)/1e3 {
			return fmt.Errorf("%s: %.2f us is above the limit, %g us", limit.name, limit.us, float64(limit.most)/1e3)
		}
	}
	return nil
}

func (l *leastBW) check(r *result) error {
	if r.Bandwidth.Gbit < l.MinBW {
		return fmt.Errorf("bandwidth: %.3f Gbit/s is below the limit, %g Gbit/s", r.Bandwidth.Gbit, l.MinBW)
	}
	return nil
}

// values returns the limits that are set, by their names in JSON.
func (l *limits) values() map[string]float64 {
	return set(map[string]float64{"max_lat_us": float64(l.MaxLat) / 1e3, "max_p99_us": float64(l.MaxP99) / 1e3})
}

func (l *leastBW) values() map[string]float64 {
	return set(map[string]float64{"min_bw_gbit_per_second": l.MinBW})
}

func set(limits map[string]float64) map[string]float64 {
	maps.DeleteFunc(limits, func(_ string, v float64) bool { return v == 0 })
	return limits
}

// limit is what results must keep.
type limit interface {
	check(*result) error
	values() map[string]float64
}

// cqMod returns how many messages share a completion: by default as many as in perftest, and
// 1 if messages are long, since the last of many would complete long after the first.
func (d *depthFlags) cqMod(size sizeFlags) int {
	n := 100
	switch {
	case d.CQMod != nil:
		n = *d.CQMod
	case size.All || size.Size > 8<<10:
		n = 1
	}
	return min(n, d.TxDepth)
}

// latDepths are the depths of latency tests, which have one message in flight.
var latDepths = depthFlags{QPs: 1, TxDepth: 128, RxDepth: 16, List: 1}

const atomicSize = 8

func (c *latCmd) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, sizeFlags{Size: atomicSize}, latDepths, &c.limits)
}

func (c *sizedLat) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, c.sizeFlags, latDepths, &c.limits)
}

func (c *bwCmd) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, sizeFlags{Size: atomicSize}, c.depthFlags, &c.leastBW)
}

func (c *sizedBW) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, c.sizeFlags, c.depthFlags, &c.leastBW)
}

// run makes the runs of any test, which the names of the command identify, and checks the
// results.
func (c *flags) run(ctx context.Context, k *kong.Context, size sizeFlags, depth depthFlags, limit limit) error {
	if c.Host == "" {
		return c.serve(ctx, k)
	}
	w := work{
		Version: version, Op: k.Selected().Parent.Name, Mode: k.Selected().Name, Size: size.Size,
		Iters: c.Iters, Duration: time.Duration(c.Duration),
		QPs: depth.QPs, TxDepth: depth.TxDepth, RxDepth: depth.RxDepth, List: depth.List,
		CQMod: depth.cqMod(size), Inline: c.Inline, Both: depth.Both, Events: c.Events,
		TClass: c.TClass, Timeout: c.Timeout,
	}
	if c.Duration != 0 {
		w.Iters = 0
	}
	if err := w.validate(); err != nil {
		return cli.Usage(err)
	}
	switch {
	case c.Once:
		return cli.Usage(errors.New("once: only a server serves a client"))
	case c.Interval < 0:
		return cli.Usage(fmt.Errorf("interval: %v is below 0", time.Duration(c.Interval)))
	}
	period := time.Duration(c.Interval)
	doc := newDocument(k.Args, w, size.All, period, limit.values())
	ctl, err := connect(ctx, c.Device, cli.JoinPort(c.Host, c.Port))
	if err != nil {
		return err
	}
	defer ctl.conn.Close()
	table := csv.NewWriter(k.Stdout)
	defer table.Flush()
	switch {
	case c.CSV:
		table.Write(columns)
	case !c.JSON:
		fmt.Fprintln(k.Stdout, heading(w.Op, w.Mode))
	}
	var intervals []interval
	onStart := func(s *side) (onEnd func()) {
		c.logStart(k, s)
		if period == 0 {
			return s.showProgress(os.Stderr)
		}
		intervals = nil
		return s.reportIntervals(period, func(i interval) {
			intervals = append(intervals, i)
			switch {
			case c.CSV:
				table.Write(i.result(s).record())
				table.Flush()
			case !c.JSON:
				fmt.Fprintln(k.Stdout, i)
			}
		})
	}
	var limitErrs []error
	doc.Results, err = runAll(ctx, ctl, w, size.All, onStart, func(r *result) {
		r.Intervals = intervals
		if err := limit.check(r); err != nil {
			limitErrs = append(limitErrs, err)
			doc.Failed = append(doc.Failed, err.Error())
		}
		switch {
		case c.CSV:
			table.Write(r.record())
			table.Flush()
		case !c.JSON:
			fmt.Fprintln(k.Stdout, r.line(cli.Width(k.Stdout)))
		}
	})
	if c.JSON && len(doc.Results) > 0 {
		if err != nil {
			doc.Failed = append(doc.Failed, err.Error())
		}
		err = errors.Join(err, cli.WriteJSON(k.Stdout, doc))
	}
	return errors.Join(err, table.Error(), errors.Join(limitErrs...))
}

func (c *commonFlags) logStart(k *kong.Context, s *side) {
	if c.Verbose {
		fmt.Fprintf(k.Stderr, "%v with %v on %s begins\n", &s.work, s.ctl.conn.RemoteAddr(), cli.Printable(s.path.Device.Name))
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
	addr := fmt.Sprintf(":%d", c.Port)
	if c.Device != "" {
		local, err := cli.DeviceAddr(c.Device)
		if err != nil {
			return err
		}
		addr = netip.AddrPortFrom(local, uint16(c.Port)).String()
	}
	var mu sync.Mutex
	v := server{
		onStart: func(s *side) (onEnd func()) { c.logStart(k, s); return func() {} },
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
	return v.serve(ctx, addr, c.Once)
}
