// Package demo implements verbs demo, which connects a client to a server in one process.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"

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

	JSON bool `help:"Print the result as JSON, at the end."`
}

func (c *Cmd) Help() string {
	return `Examples:

  verbs demo                     on the first device
  verbs demo -a 10.9.1.1         on the device with this address
  verbs demo --soft              without RDMA in the kernel
  verbs demo -s "another text" --json`
}

// result is the output of --json.
type result struct {
	Device string `json:"device"`
	Addr   string `json:"address"`
	Text   string `json:"text"`
	Back   string `json:"read_back"` // what the client has read from the server
	Match  bool   `json:"match"`
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
	return c.copy(ctx, nil, addr)
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
	if !c.JSON {
		fmt.Printf("device %s in user space, on UDP port %d of %s\n", dev.Name(), port, addr)
	}
	transport := &cm.Transport{Host: dev}
	return errors.Join(c.copy(ctx, transport, addr.String()), transport.Close(), dev.Close())
}

// copy runs both sides on the device with an address, and prints each step or the result.
func (c *Cmd) copy(ctx context.Context, transport *cm.Transport, addr string) error {
	d := demo{transport, c.Text, io.Discard}
	if !c.JSON {
		d.out = os.Stdout
	}
	done, err := d.run(ctx, addr)
	if err != nil || !c.JSON {
		return err
	}
	return cli.WriteJSON(os.Stdout, done)
}

// Copy connects to a listener at an address of this machine, writes to its memory and reads it
// back.
func Copy(ctx context.Context, addr string) error {
	_, err := demo{nil, "verbs demo", io.Discard}.run(ctx, addr)
	return err
}

// demo holds the settings of both sides.
type demo struct {
	transport *cm.Transport // nil is the default
	text      string
	out       io.Writer // of each step
}

func (d demo) log(format string, args ...any) { fmt.Fprintf(d.out, format+"\n", args...) }

// run runs both sides on the device with an address. The side that fails first ends the other one.
func (d demo) run(parent context.Context, addr string) (done result, err error) {
	l, err := (&rconn.ListenConfig{Transport: d.transport}).Listen(parent, cli.JoinPort(addr, 0))
	if err != nil {
		return done, err
	}
	defer l.Close()
	d.log("server: listening on %v", l.Addr())
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	var server sync.WaitGroup
	server.Go(func() {
		if err := d.serve(ctx, l); err != nil {
			cancel(err)
		}
	})
	if done, err = d.dial(ctx, l.Addr().String()); err != nil {
		cancel(err)
	}
	server.Wait()
	done.Addr, done.Text, done.Match = addr, d.text, true
	return done, context.Cause(ctx)
}

// serve offers the client memory until the client disconnects.
func (d demo) serve(ctx context.Context, l *rconn.Listener) error {
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var memory *rconn.LocalRegion
	conn, err := req.Accept(ctx, rconn.Options{Setup: func(conn *rconn.Conn) (err error) {
		if memory, err = conn.Alloc(len(d.text), rconn.ReadWrite); err != nil {
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
	d.log("server: the client has disconnected; the memory holds %q", memory.Bytes())
	if string(memory.Bytes()) != d.text {
		return fmt.Errorf("it is not %q", d.text)
	}
	return nil
}

// dial writes to the server's memory, reads it back and compares.
func (d demo) dial(ctx context.Context, addr string) (done result, err error) {
	conn, err := (&rconn.Dialer{Transport: d.transport}).Dial(ctx, addr)
	if err != nil {
		return done, err
	}
	defer conn.Close()
	memory := conn.Adverts()[0]
	done.Device = conn.Endpoint().QP.PD().Context().Device().Name
	d.log("client: connected; the server lends %d bytes at %#x, key %#x", memory.Len, memory.Addr, memory.Key)
	if err := conn.Put(ctx, memory.At(0), []byte(d.text)); err != nil {
		return done, err
	}
	d.log("client: wrote %q", d.text)
	back := make([]byte, len(d.text))
	if err := conn.Get(ctx, back, memory.At(0)); err != nil {
		return done, err
	}
	done.Back = string(back)
	d.log("client: read  %q", back)
	if done.Back != d.text {
		return done, errors.New("source and destination buffers do not match")
	}
	d.log("client: SUCCESS, source and destination buffers match")
	return done, nil
}
