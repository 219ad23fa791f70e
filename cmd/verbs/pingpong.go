package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
)

// pingpongCmd has a subcommand for each of rdma-core's programs; the options
// have the same letters and names.
type pingpongCmd struct {
	RC  pingpongRC  `cmd:"" default:"withargs" set:"size=4096" help:"By reliable connection: ibv_rc_pingpong's counterpart. The default."`
	UC  pingpongUC  `cmd:"" set:"size=4096" help:"By unreliable connection: ibv_uc_pingpong's counterpart."`
	UD  pingpongUD  `cmd:"" set:"size=1024" help:"By datagrams: ibv_ud_pingpong's counterpart."`
	SRQ pingpongSRQ `cmd:"" set:"size=4096" help:"By reliable connections that share a receive queue: ibv_srq_pingpong's counterpart."`
}

type pingpongFlags struct {
	Host    string        `arg:"" optional:"" help:"Server to connect to; without one be the server."`
	Port    uint16        `short:"p" default:"18515" help:"The server's TCP port, for exchanging addresses."`
	Device  string        `short:"d" name:"ib-dev" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: the first)."`
	IBPort  int           `short:"i" default:"1" help:"Port of the device."`
	Size    int           `short:"s" default:"${size}" help:"Bytes a message."`
	RxDepth int           `short:"r" default:"500" help:"Receives to post at a time."`
	Iters   int           `short:"n" default:"1000" help:"Messages to exchange each way, over all QPs."`
	SL      uint8         `short:"l" default:"0" help:"Service level."`
	Events  bool          `short:"e" help:"Sleep until there is a completion, rather than poll for it."`
	GIDIdx  int           `short:"g" default:"-1" help:"Index of the GID to use (default: the best of the port)."`
	Check   bool          `short:"c" name:"chk" help:"Compare every byte received with what it must be."`
	JSON    bool          `short:"j" help:"Print the result as JSON."`
	Timeout time.Duration `default:"10s" help:"Give up when the peer is silent for so long; 0 is never."`
}

type pingpongMTU struct {
	MTU int `short:"m" default:"1024" enum:"256,512,1024,2048,4096" help:"Path MTU; the peer's must be the same."`
}

// pathMTU is the MTU as the verbs code it.
func (m pingpongMTU) pathMTU() (mtu verbs.MTU) {
	for mtu.Bytes() != m.MTU {
		mtu++
	}
	return mtu
}

type pingpongRC struct {
	pingpongFlags
	pingpongMTU
}

type pingpongUC struct {
	pingpongFlags
	pingpongMTU
}

type pingpongUD struct{ pingpongFlags }

type pingpongSRQ struct {
	pingpongFlags
	pingpongMTU
	NumQP int `short:"q" default:"16" help:"QPs to use; the peer must use as many."`
}

func (c *pingpongRC) Run(ctx context.Context) error {
	return c.run(ctx, pingpongKind{name: "rc", qp: verbs.RC, mtu: c.pathMTU(), numQP: 1})
}

func (c *pingpongUC) Run(ctx context.Context) error {
	return c.run(ctx, pingpongKind{name: "uc", qp: verbs.UC, mtu: c.pathMTU(), numQP: 1})
}

func (c *pingpongUD) Run(ctx context.Context) error {
	return c.run(ctx, pingpongKind{name: "ud", qp: verbs.UD, numQP: 1})
}

func (c *pingpongSRQ) Run(ctx context.Context) error {
	switch {
	case c.NumQP < 1 || c.NumQP >= pingpongMaxQP:
		return fmt.Errorf("%d QPs are not in 1..%d", c.NumQP, pingpongMaxQP-1)
	case c.RxDepth < c.NumQP:
		return fmt.Errorf("%d receives are too few for %d QPs: each may get a message", c.RxDepth, c.NumQP)
	}
	return c.run(ctx, pingpongKind{name: "srq", qp: verbs.RC, mtu: c.pathMTU(), numQP: c.NumQP, shared: true})
}

// pingpongKind is what tells the subcommands apart.
type pingpongKind struct {
	name   string
	qp     verbs.QPType
	mtu    verbs.MTU // of UD it is the port's
	numQP  int
	shared bool // QPs take their receives from an SRQ
}

func (c *pingpongFlags) run(ctx context.Context, kind pingpongKind) (err error) {
	if c.Iters < 1 || c.RxDepth < 1 {
		return fmt.Errorf("%d messages with %d receives posted: both must be 1 or more", c.Iters, c.RxDepth)
	}
	p, err := newPingpong(c, kind)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	r := &pingpongResult{Type: kind.name, Size: c.Size, Iters: c.Iters}
	meet := pingpongMeeting{port: c.Port, timeout: c.Timeout, onWire: 1, connect: p.connect}
	if kind.shared {
		meet.onWire = pingpongMaxQP
	}
	for _, rally := range p.rallies {
		meet.local = append(meet.local, rally.local)
	}
	r.Local = c.addresses("local address: ", meet.local)
	var remote []verbs.QPAddr
	if c.Host != "" {
		remote, err = meet.join(ctx, c.Host)
	} else {
		remote, err = meet.host(ctx)
	}
	if err != nil {
		return err
	}
	r.Remote = c.addresses("remote address:", remote)
	took, err := p.play(ctx)
	if err != nil {
		return err
	}
	r.measure(took)
	r.Checked = p.checked
	return r.print(c.JSON)
}
