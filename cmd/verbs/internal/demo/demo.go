// Package demo implements verbs demo, which connects a client to a server in one process.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/soft"
)

// Cmd is verbs demo, for kong.
type Cmd struct {
	Text string `short:"s" default:"Hello from Go, over RDMA!" help:"String to copy."`
	Addr string `short:"a" placeholder:"ADDR" help:"Address to use (default: that of the first device)."`
	Soft bool   `help:"Use a device in user space, on any machine (default address: 127.0.0.1)."`

	JSON bool `help:"Print JSON: what was done, at the end."`

	transport *cm.Transport // nil is the default
	done      result
}

func (c *Cmd) Help() string {
	return `Examples:

  verbs demo                     on the first device
  verbs demo -a 10.9.1.1         on the device with this address
  verbs demo --soft              without RDMA in the kernel
  verbs demo -s "another text" --json`
}

// result is what --json prints.
type result struct {
	Device string `json:"device"`
	Addr   string `json:"address"`
	Text   string `json:"text"`
	Back   string `json:"read_back"` // what the client has read from the server
	Match  bool   `json:"match"`
}

// printf prints a line of the text.
func (c *Cmd) printf(format string, args ...any) {
	if !c.JSON {
		fmt.Printf(format+"\n", args...)
	}
}

// Run runs both sides of a connection: the client writes to the server's memory, reads it
// back and compares.
func (c *Cmd) Run(ctx context.Context) error {
	if c.Text == "" {
		return cli.Usage(errors.New("text (-s): it is empty"))
	}
	if c.Soft {
		return c.runSoft(ctx)
	}
	addr := c.Addr
	if addr == "" {
		first, err := cli.DeviceAddr("")
		if err != nil {
			return err
		}
		addr = first.String()
	}
	return c.run(ctx, addr)
}

// runSoft runs both sides on a device in user space, which has a UDP port that nothing else uses.
func (c *Cmd) runSoft(ctx context.Context) (err error) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if c.Addr != "" {
		if addr, err = netip.ParseAddr(c.Addr); err != nil {
			return cli.Usage(fmt.Errorf("address (-a): %w", err))
		}
	}
	free, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return err
	}
	port := free.LocalAddr().(*net.UDPAddr).Port
	free.Close()
	dev, err := soft.New(soft.Options{Addrs: []netip.Addr{addr}, Port: port})
	if err != nil {
		return err
	}
	c.printf("device %s in user space, on UDP port %d of %s", dev.Name(), port, addr)
	c.transport = &cm.Transport{CM: dev.CM()}
	return errors.Join(c.run(ctx, addr.String()), c.transport.Close(), dev.Close())
}

// run runs both sides on the device with an address.
func (c *Cmd) run(ctx context.Context, addr string) error {
	l, err := (&rconn.ListenConfig{Transport: c.transport}).Listen(ctx, cli.JoinPort(addr, 0))
	if err != nil {
		return err
	}
	defer l.Close()
	c.printf("server: listening on %v", l.Addr())
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	served := make(chan error, 1)
	go func() {
		err := c.serve(ctx, l)
		if err != nil {
			cancel()
		}
		served <- err
	}()
	err = c.dial(ctx, l.Addr().String())
	if err != nil {
		cancel()
	}
	if err := errors.Join(err, <-served); err != nil {
		return err
	}
	if !c.JSON {
		return nil
	}
	c.done.Addr, c.done.Text, c.done.Match = addr, c.Text, true
	return cli.WriteJSON(os.Stdout, c.done)
}

// serve offers the client memory until the client disconnects.
func (c *Cmd) serve(ctx context.Context, l *rconn.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var memory *rconn.LocalRegion
	conn, err := req.Accept(ctx, rconn.Options{Setup: func(conn *rconn.Conn) (err error) {
		if memory, err = conn.Alloc(len(c.Text), rconn.ReadWrite); err != nil {
			return err
		}
		return conn.Announce(0, memory.All())
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.AwaitDisconnect(ctx); err != nil {
		return err
	}
	c.printf("server: the client has disconnected; the memory holds %q", memory.Bytes())
	if string(memory.Bytes()) != c.Text {
		return fmt.Errorf("it is not %q", c.Text)
	}
	return nil
}

// dial writes to the server's memory, reads it back and compares.
func (c *Cmd) dial(ctx context.Context, addr string) error {
	conn, err := (&rconn.Dialer{Transport: c.transport}).Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	memory := conn.Adverts()[0]
	c.done.Device = conn.Endpoint().QP.PD().Context().Device().Name
	c.printf("client: connected; the server lends %d bytes at %#x, key %#x", memory.Len, memory.Addr, memory.Key)
	if err := conn.Put(ctx, memory.At(0), []byte(c.Text)); err != nil {
		return err
	}
	c.printf("client: wrote %q", c.Text)
	back := make([]byte, len(c.Text))
	if err := conn.Get(ctx, back, memory.At(0)); err != nil {
		return err
	}
	c.done.Back = string(back)
	c.printf("client: read  %q", back)
	if string(back) != c.Text {
		return errors.New("source and destination buffers do not match")
	}
	c.printf("client: SUCCESS, source and destination buffers match")
	return nil
}
