// Package pingpong implements verbs pingpong, a counterpart of rdma-core's ibv_*_pingpong that
// also works with them.
package pingpong

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs pingpong, for kong. It has a subcommand for each of rdma-core's programs; the
// options have the same letters and names.
type Cmd struct {
	RC  connected `cmd:"" default:"withargs" set:"size=4096" help:"By reliable connection: ibv_rc_pingpong's counterpart. The default."`
	UC  connected `cmd:"" set:"size=4096" help:"By unreliable connection: ibv_uc_pingpong's counterpart."`
	UD  datagrams `cmd:"" set:"size=1024" help:"By datagrams: ibv_ud_pingpong's counterpart."`
	SRQ shared    `cmd:"" set:"size=4096" help:"By reliable connections that share a receive queue: ibv_srq_pingpong's counterpart."`
}

type flags struct {
	Host    string        `arg:"" optional:"" placeholder:"HOST[:PORT]" help:"Server to connect to; without one be the server."`
	Port    uint16        `short:"p" default:"18515" help:"The server's TCP port, for exchanging addresses."`
	Device  string        `short:"d" name:"ib-dev" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: the first)."`
	IBPort  int           `short:"i" default:"1" help:"Port of the device."`
	Size    int           `short:"s" type:"size" default:"${size}" help:"Bytes a message."`
	RxDepth int           `short:"r" default:"500" help:"Receives to post at a time."`
	Iters   int           `short:"n" default:"1000" help:"Messages to exchange each way, over all QPs."`
	SL      uint8         `short:"l" default:"0" help:"Service level."`
	Events  bool          `short:"e" help:"Sleep until there is a completion, rather than poll for it."`
	GIDIdx  int           `short:"g" default:"-1" help:"Index of the GID to use (default: the best of the port)."`
	Check   bool          `short:"c" name:"chk" help:"Compare every byte received with what it must be."`
	JSON    bool          `short:"j" help:"Print the result as JSON."`
	Timeout time.Duration `default:"10s" help:"Give up when the peer is silent for this long; 0 is never."`
}

func (c *flags) Help() string {
	return `Examples:

  verbs pingpong rc -d rxe0 -g 1                  be the server, for ours or ibv_rc_pingpong
  verbs pingpong rc -d rxe0 -g 1 10.9.0.1         connect to it
  verbs pingpong ud -s 1K -n 10000 10.9.0.1 -j    datagrams; print the result as JSON`
}

type mtuFlag struct {
	MTU int `short:"m" default:"1024" enum:"256,512,1024,2048,4096" help:"Path MTU; the peer's must be the same."`
}

// code returns the code of the MTU in the verbs.
func (m mtuFlag) code() (mtu verbs.MTU) {
	for mtu.Bytes() != m.MTU {
		mtu++
	}
	return mtu
}

type datagrams struct{ flags }

func (c *datagrams) Run(ctx context.Context) error {
	return c.run(ctx, kind{name: "ud", qp: verbs.UD, numQP: 1})
}

type connected struct {
	flags
	mtuFlag
}

func (c *connected) Run(ctx context.Context, k *kong.Context) error {
	kind := kind{name: k.Selected().Name, qp: verbs.RC, mtu: c.code(), numQP: 1}
	if kind.name == "uc" {
		kind.qp = verbs.UC
	}
	return c.run(ctx, kind)
}

type shared struct {
	flags
	mtuFlag
	NumQP int `short:"q" default:"16" help:"QPs to use; the peer must use as many."`
}

func (c *shared) Run(ctx context.Context) error {
	switch {
	case c.NumQP < 1 || c.NumQP >= maxQP:
		return cli.Usage(fmt.Errorf("QPs (-q): %d is not in 1..%d", c.NumQP, maxQP-1))
	case c.RxDepth < c.NumQP:
		return cli.Usage(fmt.Errorf("receives (-r): %d are too few for %d QPs: each may get a message", c.RxDepth, c.NumQP))
	}
	return c.run(ctx, kind{name: "srq", qp: verbs.RC, mtu: c.code(), numQP: c.NumQP, shared: true})
}

// kind holds the differences between the subcommands.
type kind struct {
	name   string
	qp     verbs.QPType
	mtu    verbs.MTU // not of UD, which uses the port's
	numQP  int
	shared bool // QPs take their receives from an SRQ
}

func (c *flags) run(ctx context.Context, kind kind) (err error) {
	if c.Iters < 1 || c.RxDepth < 1 {
		return cli.Usage(fmt.Errorf("messages (-n, %d) and receives (-r, %d): both must be 1 or more", c.Iters, c.RxDepth))
	}
	s := &side{flags: c, kind: kind}
	defer func() { err = errors.Join(err, s.objects.Close()) }()
	if err := s.setUp(); err != nil {
		return err
	}
	x := exchange{timeout: c.Timeout, onWire: 1, connect: s.connect}
	if kind.shared {
		x.onWire = maxQP
	}
	for _, l := range s.lanes {
		x.local = append(x.local, l.local)
	}
	r := &result{Type: kind.name, Size: c.Size, Iters: c.Iters}
	r.Local = c.addresses("local address: ", x.local)
	remote, err := x.run(ctx, c.Host, int(c.Port))
	if err != nil {
		return err
	}
	r.Remote = c.addresses("remote address:", remote)
	took, err := s.exchangeMessages(ctx)
	if err != nil {
		return err
	}
	r.measure(took)
	r.Checked = s.checked
	return r.print(c.JSON)
}
