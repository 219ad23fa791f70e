// Package ping implements verbs ping, a counterpart of rping that also works with it.
package ping

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs ping, for kong. Its options have the letters of rping's.
type Cmd struct {
	Server     bool       `short:"s" xor:"side" required:"" help:"Serve a client."`
	Client     bool       `short:"c" xor:"side" required:"" help:"Connect to a server."`
	Addr       string     `short:"a" placeholder:"HOST[:PORT]" help:"Address to connect to, or to listen on (default: all)."`
	Source     netip.Addr `short:"I" placeholder:"ADDR" help:"Address to connect from (default: routing's choice)."`
	TOS        uint8      `name:"tos" placeholder:"NUMBER" help:"Type of service, or traffic class, of the packets; set by the client (default: the system's)."`
	Port       int        `short:"p" default:"7174" help:"Port."`
	Count      int        `short:"C" help:"Rounds, set by the client; 0 is until interrupted."`
	Size       cli.Size   `short:"S" default:"64" help:"Bytes a round, ${pingMin} to 65535. Set by the client."`
	Verbose    bool       `short:"v" help:"Print the data."`
	Check      bool       `short:"V" name:"validate" help:"Compare the data that comes back with the data sent."`
	Persistent bool       `short:"P" help:"Serve up to 64 clients at a time, until interrupted."`
	Debug      bool       `short:"d" help:"Print every message and connection, on standard error."`
	JSON       bool       `help:"Print the result as JSON, as a server one line for each client; the data goes to standard error."`
}

// The limits of the size are those of rping: the text of round 2147483647 must fit, and a
// server accepts no more than its buffer holds.
const (
	MinSize = 23
	maxSize = 64<<10 - 1
)

// Run runs the client or the server.
func (c *Cmd) Run(ctx context.Context) error {
	if err := c.check(); err != nil {
		return cli.Usage(err)
	}
	addr := cli.JoinPort(c.Addr, c.Port)
	if c.Client {
		return c.client(ctx, addr)
	}
	return c.server(ctx, addr)
}

func (c *Cmd) check() error {
	switch {
	case c.Size < MinSize || c.Size > maxSize:
		return fmt.Errorf("size (-S): %d is not in %d..%d", c.Size, MinSize, maxSize)
	case c.Count < 0:
		return fmt.Errorf("rounds (-C): %d is below 0", c.Count)
	case c.Client && c.Persistent:
		return errors.New("persistent (-P): for servers only")
	case c.Client && c.Addr == "":
		return errors.New("address (-a): required for a client")
	}
	return nil
}

func (c *Cmd) Help() string {
	return `Examples:

  verbs ping -s                            serve a client, ours or rping
  verbs ping -c -a 10.9.0.1 -C 10 -v -V    10 rounds; show and compare data
  verbs ping -s -P -a 10.9.0.1:7175        serve many, on another port`
}

// printData prints the text of a round.
func (c *Cmd) printData(title string, b []byte) {
	if !c.Verbose {
		return
	}
	var w io.Writer = os.Stdout
	if c.JSON {
		w = os.Stderr
	}
	fmt.Fprintf(w, "%s: %s\n", title, cli.Printable(string(text(b))))
}
