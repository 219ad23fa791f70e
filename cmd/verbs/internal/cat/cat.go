// Package cat implements verbs cat, a netcat over package rsock.
package cat

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// Cmd copies the standard input to a connection, and the connection to the standard output.
type Cmd struct {
	Addr    string        `arg:"" placeholder:"HOST[:PORT]" help:"Address to connect to, or with -l to listen on: :PORT is all addresses. The default port is 7471."`
	Listen  bool          `short:"l" help:"Accept one connection instead of making one."`
	Timeout time.Duration `short:"w" placeholder:"TIME" help:"Give up connecting, or waiting for a connection, after this long."`
	TOS     uint8         `name:"tos" placeholder:"NUMBER" help:"Type of service, or traffic class, of the packets; set by the side that connects (default: the system's)."`
	Buffer  cli.Size      `short:"B" placeholder:"BYTES" help:"Size of the buffers, each way."`
}

func (c *Cmd) Help() string {
	return `The end of the input ends this direction only: verbs cat continues until the peer
has ended the other. The peer may be a C program on rsockets, or a TCP program
run with librspreload.so.

Examples:

  verbs cat -l 10.9.0.1 >copy       receive a file
  verbs cat 10.9.0.1 <file          send it
  verbs cat -w 5s 10.9.0.1:80       talk to a server that answers in 5 s`
}

func (c *Cmd) Run(ctx context.Context) error {
	conn, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	err = join(conn.(*rsock.Conn), os.Stdin, os.Stdout)
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

func (c *Cmd) connect(ctx context.Context) (net.Conn, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.Timeout)
		defer cancel()
	}
	// The process exits after Close, also with -l.
	opt := rsock.Options{ReadBuffer: int(c.Buffer), WriteBuffer: int(c.Buffer), Linger: 10 * time.Second}
	addr := cli.JoinPort(c.Addr, 7471)
	if !c.Listen {
		return (&rsock.Dialer{Options: opt, TOS: c.TOS}).DialContext(ctx, "rdma", addr)
	}
	l, err := (&rsock.ListenConfig{Options: opt}).Listen(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	conn, err := l.Accept()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return conn, err
}

// join copies in both directions until both have ended, conn breaks or in cannot be read, and closes conn.
func join(conn *rsock.Conn, in io.Reader, out io.Writer) error {
	sent := make(chan error, 1)
	go func() {
		r := input{r: in}
		_, err := conn.ReadFrom(&r)
		if err == nil {
			err = conn.CloseWrite()
		}
		sent <- cmp.Or(r.err, err)
		if r.err != nil { // the peer waits for the rest, and we for the peer
			conn.SetReadDeadline(time.Unix(1, 0))
		}
	}()
	_, err := conn.WriteTo(out)
	if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		err = <-sent
	}
	return errors.Join(err, conn.Close())
}

// input is a reader that keeps its error.
type input struct {
	r   io.Reader
	err error
}

func (i *input) Read(b []byte) (int, error) {
	n, err := i.r.Read(b)
	if err != nil && err != io.EOF {
		i.err = fmt.Errorf("standard input: %w", err)
		err = i.err
	}
	return n, err
}
