package perf

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs perf, for kong. Options have perftest's letters.
type Cmd struct {
	Server   serverCmd `cmd:"" help:"Serve clients, whatever they test, until interrupted."`
	Send     messages  `cmd:"" help:"SEND: ib_send_lat and ib_send_bw."`
	Write    messages  `cmd:"" help:"RDMA WRITE: ib_write_lat and ib_write_bw."`
	WriteImm messages  `cmd:"" name:"write-imm" help:"RDMA WRITE with immediate, which takes a receive of the peer's."`
	Read     messages  `cmd:"" help:"RDMA READ: ib_read_lat and ib_read_bw."`
	FetchAdd atomics   `cmd:"" name:"fetch-add" help:"Atomic fetch and add: ib_atomic_lat and ib_atomic_bw -A FETCH_AND_ADD."`
	CmpSwap  atomics   `cmd:"" name:"cmp-swap" help:"Atomic compare and swap: ib_atomic_lat and ib_atomic_bw -A CMP_AND_SWAP."`
	UD       datagrams `cmd:"" name:"ud" help:"SEND of datagrams, which may be lost: ib_send_lat and ib_send_bw -c UD."`
}

type messages struct {
	Lat sizedLat `kong:"cmd,set='iters=1000',set='size=2',help='Latency.'"`
	BW  sizedBW  `kong:"cmd,name='bw',set='iters=5000',set='size=65536',help='Bandwidth.'"`
}

type datagrams struct {
	Lat sizedLat `kong:"cmd,set='iters=1000',set='size=2',help='Latency.'"`
	BW  sizedBW  `kong:"cmd,name='bw',set='iters=5000',set='size=1024',help='Bandwidth.'"`
}

type atomics struct {
	Lat latCmd `cmd:"" set:"iters=1000" help:"Latency."`
	BW  bwCmd  `cmd:"" name:"bw" set:"iters=5000" help:"Bandwidth."`
}

type place struct {
	Port    int    `short:"p" default:"18515" help:"The server's port."`
	Device  string `short:"d" name:"ib-dev" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: routing's choice; a server's: all)."`
	JSON    bool   `help:"Print results as JSON."`
	Verbose bool   `short:"v" help:"Print when a run begins, on standard error."`
}

type flags struct {
	Host string `arg:"" optional:"" help:"Server to connect to; without one be a server."`
	place
	Iters    int           `short:"n" default:"${iters}" help:"Messages to send on each QP."`
	Duration seconds       `short:"D" placeholder:"SECONDS" help:"Send for this long, instead of -n."`
	Events   bool          `short:"e" help:"Sleep until there is a completion, rather than poll for it."`
	Inline   int           `short:"I" default:"0" placeholder:"BYTES" help:"Copy messages of at most this many bytes into the request."`
	TClass   uint8         `name:"tclass" default:"0" help:"Traffic class of the packets."`
	Timeout  time.Duration `default:"30s" help:"Give up when nothing moves for this long."`
}

type sizeFlags struct {
	Size int  `short:"s" default:"${size}" help:"Bytes a message."`
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

type latCmd struct{ flags }

type sizedLat struct {
	flags
	sizeFlags
}

type bwCmd struct {
	flags
	depthFlags
}

type sizedBW struct {
	flags
	sizeFlags
	depthFlags
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
	return c.run(ctx, k, sizeFlags{Size: atomicSize}, latDepths)
}

func (c *sizedLat) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, c.sizeFlags, latDepths)
}

func (c *bwCmd) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, sizeFlags{Size: atomicSize}, c.depthFlags)
}

func (c *sizedBW) Run(ctx context.Context, k *kong.Context) error {
	return c.run(ctx, k, c.sizeFlags, c.depthFlags)
}

// run makes the runs of any test, which the names of the command identify.
func (c *flags) run(ctx context.Context, k *kong.Context, size sizeFlags, depth depthFlags) error {
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
		return err
	}
	ctl, err := connect(ctx, c.Device, cli.JoinPort(c.Host, c.Port))
	if err != nil {
		return err
	}
	defer ctl.conn.Close()
	if !c.JSON {
		fmt.Fprintf(k.Stdout, "%s %s\n%s\n", w.Op, w.Mode, heading(w.Mode))
	}
	begins := func(s *side) (ends func()) {
		c.begins(k, s)
		return s.show(os.Stderr)
	}
	results, err := askAll(ctx, ctl, w, size.All, begins, func(r *result) {
		if !c.JSON {
			fmt.Fprintln(k.Stdout, r.line())
		}
	})
	if c.JSON && len(results) > 0 {
		err = errors.Join(err, cli.WriteJSON(k.Stdout, map[string][]*result{"results": results}))
	}
	return err
}

func (c *place) begins(k *kong.Context, s *side) {
	if c.Verbose {
		fmt.Fprintf(k.Stderr, "%v with %v on %s begins\n", &s.work, s.ctl.conn.RemoteAddr(), s.path.Device.Name)
	}
}

type serverCmd struct{ place }

func (c *serverCmd) Run(ctx context.Context, k *kong.Context) error { return c.serve(ctx, k) }

func (c *place) serve(ctx context.Context, k *kong.Context) error {
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
		begins: func(s *side) (ends func()) { c.begins(k, s); return func() {} },
		log:    func(format string, args ...any) { fmt.Fprintf(k.Stderr, format+"\n", args...) },
		report: func(r *result) {
			mu.Lock()
			defer mu.Unlock()
			if c.JSON {
				json.NewEncoder(k.Stdout).Encode(r) // one a line
			} else {
				fmt.Fprintln(k.Stdout, r.served())
			}
		},
	}
	return v.serve(ctx, addr)
}
