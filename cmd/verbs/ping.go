package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
)

// pingCmd has rping's options, by their letters.
type pingCmd struct {
	Server     bool       `short:"s" xor:"side" required:"" help:"Serve a client."`
	Client     bool       `short:"c" xor:"side" required:"" help:"Connect to a server."`
	Addr       string     `short:"a" help:"Address to connect to, or to listen on (default: all of IPv4)."`
	Source     netip.Addr `short:"I" placeholder:"ADDR" help:"Address to connect from (default: routing's choice)."`
	Port       int        `short:"p" default:"7174" help:"Port."`
	Count      int        `short:"C" help:"Rounds; 0 is until interrupted. The client's choice."`
	Size       int        `short:"S" default:"64" help:"Bytes a round, ${pingMin} to 65535. The client's choice."`
	Verbose    bool       `short:"v" help:"Print the data."`
	Check      bool       `short:"V" name:"validate" help:"Compare what comes back with what was sent."`
	Persistent bool       `short:"P" help:"Serve any number of clients, at once, until interrupted."`
	ByHand     bool       `short:"q" help:"Make the QP and change its states here, rather than in package cm."`
	Debug      bool       `short:"d" help:"Print every message and connection, on standard error."`
	JSON       bool       `help:"Print the result as JSON; the data goes to standard error."`
}

// The size limits are rping's: the text of 2147483647 rounds must fit, and a
// server takes no more than its buffer holds.
const (
	pingMin = 23
	pingMax = 64<<10 - 1
)

func (c *pingCmd) Run(ctx context.Context) error {
	switch {
	case c.Size < pingMin || c.Size > pingMax:
		return fmt.Errorf("size %d is not in %d..%d", c.Size, pingMin, pingMax)
	case c.Count < 0:
		return fmt.Errorf("%d rounds are too few", c.Count)
	case c.Client && c.Persistent:
		return errors.New("only a server is persistent")
	}
	addr := joinPort(c.Addr, c.Port)
	if c.Client {
		return c.client(ctx, addr)
	}
	return c.server(ctx, addr)
}

func joinPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// data is where the pings' text goes.
func (c *pingCmd) data() io.Writer {
	if c.JSON {
		return os.Stderr
	}
	return os.Stdout
}
