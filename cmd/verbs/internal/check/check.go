// Package check implements verbs check, which runs what a device must do, and measures it, for a
// report of hardware that the authors of this module do not have.
//
// Package scenario has what is run, with an active and a passive role. In loopback these are
// goroutines, with a peer two processes; a [link], a pipe or a TCP connection, takes them from step
// to step and has their addresses. Package perf measures latency and bandwidth.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/perf"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/internal/scenario"
	"github.com/goverbs/verbs/rdmadev"
	"github.com/goverbs/verbs/uverbs"
)

// Cmd is verbs check, for kong.
type Cmd struct {
	Peer     string        `arg:"" optional:"" placeholder:"PEER[:PORT]" help:"Machine that runs verbs check -s; by default only loopback is checked."`
	Device   string        `short:"d" placeholder:"DEVICE" help:"Device, by name, GUID, interface or address (default: the one that leads to the peer, or the first)."`
	IBPort   int           `short:"i" name:"ib-port" placeholder:"NUMBER" help:"Port of the device (default: the first that is active)."`
	GIDIndex *int          `short:"x" name:"gid-index" placeholder:"INDEX" help:"GID of the port (default: the best, preferably of RoCE v2)."`
	TClass   uint8         `name:"tclass" placeholder:"NUMBER" help:"Traffic class, or type of service, of the packets; the server sets its own."`
	Server   bool          `short:"s" help:"Serve as the peer of other machines, until interrupted."`
	Port     int           `short:"p" default:"18516" help:"TCP port of the peer."`
	Duration time.Duration `default:"1s" help:"How long to measure each latency and bandwidth; 0 measures none."`
	Verbose  bool          `short:"v" help:"Print how long each scenario takes."`
	JSON     bool          `help:"Print the report as JSON."`
}

func (c *Cmd) Help() string {
	return `Runs some 80 scenarios between two QPs of the device, and then with the peer's, measures
latency and bandwidth, and prints a report; attach it to issues about hardware. The report
shows the address of the port, in its GID. A scenario is refused if the device lacks
the feature. The exit status is 1 if one fails. The command changes nothing on the machine;
other programs on the device only notice the load.

Examples:

  verbs check                     the first device, loopback
  verbs check -d mlx5_0 >report.txt
  verbs check -s -d mlx5_0        on another machine, and then here:
  verbs check -d mlx5_0 10.9.0.2`
}

func (c *Cmd) Run(ctx context.Context, k *kong.Context) error {
	switch {
	case c.Server && (c.Peer != "" || c.JSON):
		return cli.Usage(errors.New("server (-s): it takes no peer and prints no report"))
	case c.Duration < 0:
		return cli.Usage(fmt.Errorf("duration: %v is below 0", c.Duration))
	}
	p, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer p.Dev.Close()
	if c.Server {
		return c.serve(ctx, k, p)
	}
	return c.check(ctx, k, p)
}

// port is where the QPs are.
type port struct {
	endpoint.Port
	desc rdmadev.Device
}

// open opens the device and chooses its port.
func (c *Cmd) open(ctx context.Context) (p port, err error) {
	device := c.Device
	if device == "" && c.Peer != "" {
		if path, err := cm.Lookup(ctx, cli.JoinPort(c.Peer, c.Port)); err == nil {
			device = path.Device.Name
		}
	}
	if p.Dev, err = uverbs.Open(device); err != nil {
		return p, err
	}
	defer func() {
		if err != nil {
			p.Dev.Close()
		}
	}()
	p.Num, p.TrafficClass = c.IBPort, c.TClass
	if p.desc, err = rdmadev.Find(p.Dev.Device().Name); err != nil {
		return p, err
	}
	for _, port := range p.desc.Ports {
		if port.State == verbs.PortActive && p.Num == 0 {
			p.Num = port.Num
		}
	}
	switch {
	case p.Num == 0:
		return p, fmt.Errorf("%s has no active port: verbs doctor has the reason", p.Dev.Device().Name)
	case p.Dev.Device().IWARP():
	case c.GIDIndex != nil:
		p.GID, err = p.Dev.QueryGID(p.Num, *c.GIDIndex)
	default:
		p.GID, err = p.Dev.FindGID(p.Num, netip.Addr{})
	}
	return p, err
}

// check makes the report.
func (c *Cmd) check(ctx context.Context, k *kong.Context, p port) error {
	here, err := p.describe()
	if err != nil {
		return err
	}
	r := report{Machine: *here, Start: time.Now(), Scenarios: []outcome{}, Figures: []perf.Figure{}}
	text := &cli.Output{W: k.Stdout}
	out := &printer{text, cli.Width(k.Stdout), c.Verbose}
	if c.JSON {
		out.w = io.Discard
	}
	out.machine("verbs", here)
	if c.Peer != "" { // before loopback takes its time, for which the peer does not wait
		peer, err := c.dial(ctx, here)
		if err != nil {
			return err
		}
		peer.Conn.Close()
		r.Peer = peer.machine
		out.machine("peer", r.Peer)
	}
	counts := map[string]int{}
	each := func(with string) func(outcome) {
		return func(o outcome) {
			o.With = with
			r.Scenarios = append(r.Scenarios, o)
			counts[o.Result]++
			out.outcome(o)
		}
	}
	a, b := net.Pipe()
	loop, ended := newLink(a, true), make(chan struct{})
	go func() {
		defer close(ended)
		newLink(b, false).answer(ctx, p)
	}()
	err = loop.runAll(ctx, p, each("loopback"))
	with, l := "loopback", loop
	if err == nil && r.Peer != nil {
		with = "peer"
		if l, err = c.dial(ctx, here); err == nil {
			defer l.Conn.Close()
			defer l.cancelWith(ctx)()
			err = l.runAll(ctx, p, each(with))
		}
	}
	if err == nil && c.Duration > 0 {
		r.Measured, r.Figures = with, l.measure(ctx, p, c.Duration)
		out.figures(with, r.Figures)
	}
	a.Close()
	<-ended
	fmt.Fprintf(out.w, "\n%d passed, %d failed, %d refused\n", counts[passed], counts[failed], counts[refused])
	err = errors.Join(err, text.Err)
	if c.JSON {
		err = errors.Join(err, cli.WriteJSON(k.Stdout, r))
	}
	if n := counts[failed]; n > 0 {
		err = errors.Join(err, fmt.Errorf("%d of %d scenarios failed on %s", n, len(r.Scenarios), cli.Printable(here.Device)))
	}
	return cli.Cause(ctx, err)
}

// dial connects to the peer, and tells it what this machine is.
func (c *Cmd) dial(ctx context.Context, here *machine) (*link, error) {
	conn, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", cli.JoinPort(c.Peer, c.Port))
	if err != nil {
		return nil, fmt.Errorf("%w (is verbs check -s running there?)", err)
	}
	l := newLink(conn, true)
	defer l.cancelWith(ctx)()
	m, err := l.swap(message{Hello: here})
	switch {
	case l.peers != nil:
		err = fmt.Errorf("peer %v: %s", conn.RemoteAddr(), l.peers.Error)
	case err == nil && m.Hello == nil:
		err = cli.ErrProtocol
	}
	if err != nil {
		conn.Close()
		return nil, cli.Cause(ctx, err)
	}
	l.machine = m.Hello
	return l, nil
}

// runAll runs all scenarios with the passive role at the other end of the link. An error is one of
// the link.
func (l *link) runAll(ctx context.Context, p port, each func(outcome)) error {
	for i := range scenario.List {
		s := &scenario.List[i]
		if err := l.send(message{Scenario: s.Name}); err != nil {
			return err
		}
		started := time.Now()
		mine, peers, err := l.run(ctx, p, s)
		if err == nil && ctx.Err() != nil { // which is no failure of the device
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		o := outcome{Scenario: s.Name, Seconds: time.Since(started).Seconds()}
		o.result(mine, peers)
		each(o)
	}
	return nil
}

// run plays this role of a scenario.
func (l *link) run(ctx context.Context, p port, s *scenario.Scenario) (mine, peers verdict, err error) {
	a := &scenario.Actor{Ctx: ctx, Active: l.active, Swap: l.swapAddress}
	mine = newVerdict(a.Play(s, p.Port), a)
	peers, err = l.finish(mine)
	if cerr := a.Close(); cerr != nil && mine.Error == "" {
		mine = newVerdict(fmt.Errorf("close: %w", cerr), a)
	}
	return mine, peers, err
}

// What strangers can take of a server: see docs/security.md.
const (
	maxClients   = 4
	refusalLimit = time.Second
	measureLimit = time.Hour // of measuring, for which the client chooses a time
)

// answer plays the passive roles, and serves measurements, as the active end asks, until that closes
// the link.
func (l *link) answer(ctx context.Context, p port) error {
	for {
		m, err := l.receive()
		if err != nil {
			return err
		}
		i := slices.IndexFunc(scenario.List, func(s scenario.Scenario) bool { return s.Name == m.Scenario })
		switch {
		case m.Measure:
			err = l.serveFigures(ctx, p)
		case i >= 0:
			_, _, err = l.run(ctx, p, &scenario.List[i])
		default: // of another version
			_, err = l.finish(newVerdict(fmt.Errorf("scenario %q: %w", m.Scenario, errors.ErrUnsupported), nil))
		}
		if err != nil {
			return err
		}
	}
}

// serveFigures runs a server of package perf until the active end has measured.
func (l *link) serveFigures(ctx context.Context, p port) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	addr, err := endpoint.Addr(p.Dev.Device())
	var at net.Addr
	if err == nil {
		var ended <-chan struct{}
		if at, ended, err = perf.Serve(ctx, addr.String()); err == nil {
			defer func() { cancel(); <-ended }()
		}
	}
	answer := message{}
	if err != nil {
		answer.End = &verdict{Error: err.Error()}
	} else {
		answer.CM = at.String()
	}
	if err := l.send(answer); err != nil {
		return err
	}
	l.Conn.SetReadDeadline(time.Now().Add(measureLimit))
	_, err = l.next() // when it has measured
	return err
}

// measure measures with the passive end of the link.
func (l *link) measure(ctx context.Context, p port, long time.Duration) []perf.Figure {
	err := l.send(message{Measure: true})
	var m message
	if err == nil {
		m, err = l.receive()
	}
	if err == nil && m.End != nil {
		err = errors.New(m.End.Error)
	}
	if err != nil {
		return []perf.Figure{{Test: "all", Error: cli.Printable(err.Error())}}
	}
	figures := perf.Measure(ctx, p.Dev.Device().Name, m.CM, p.TrafficClass, long)
	l.send(message{})
	return figures
}

// serve is the peer of others.
func (c *Cmd) serve(ctx context.Context, k *kong.Context, p port) error {
	here, err := p.describe()
	if err != nil {
		return err
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(c.Port)))
	if err != nil {
		return err
	}
	fmt.Fprintf(k.Stderr, "listening on %v, with %s\n", l.Addr(), cli.Printable(here.Device))
	s := cli.Server{
		Most: maxClients,
		Handle: func(ctx context.Context, conn net.Conn) {
			peer := newLink(conn, false)
			defer peer.cancelWith(ctx)()
			if _, err := peer.swap(message{Hello: here}); err != nil {
				fmt.Fprintf(k.Stderr, "client %v: %v\n", conn.RemoteAddr(), err)
				return
			}
			peer.answer(ctx, p)
		},
		Refuse: func(conn net.Conn, why error) {
			peer := newLink(conn, false)
			conn.SetReadDeadline(time.Now().Add(refusalLimit))
			if _, err := peer.next(); err == nil {
				peer.Send(message{End: &verdict{Error: why.Error()}}, refusalLimit)
			}
		},
		Log: func(err error) { cli.Warn(k.Stderr, err) },
	}
	return s.Serve(ctx, l)
}
