package cp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/rsock"
)

// server serves a directory.
type server struct {
	root     *os.Root
	readOnly bool
	log      func(format string, args ...any)
}

func (c *Cmd) serve(ctx context.Context) error {
	root, err := os.OpenRoot(c.Serve)
	if err != nil {
		return err
	}
	defer root.Close()
	l, err := new(rsock.ListenConfig).Listen(ctx, "rdma", c.Listen)
	if err != nil {
		return err
	}
	fmt.Printf("serving %s on %v\n", c.Serve, l.Addr())
	s := &server{root, c.ReadOnly, func(format string, args ...any) {
		if !c.Quiet {
			fmt.Printf(format+"\n", args...)
		}
	}}
	return cli.Serve(ctx, l, s.handle)
}

func (s *server) handle(ctx context.Context, conn net.Conn) {
	defer context.AfterFunc(ctx, func() { abort(conn) })()
	if err := s.client(conn); err != nil {
		s.log("%v: %v", conn.RemoteAddr(), err)
	}
}

// client serves one client.
func (s *server) client(nc net.Conn) error {
	c := newConn(nc)
	m, err := c.receive()
	if err != nil {
		return err
	}
	if err := s.allowed(m); err != nil {
		c.send(message{Error: err.Error()})
		return fmt.Errorf("%s %s: %w", m.Op, m.Name, err)
	}
	send := m.Op == "get"
	done, err := c.transfer(s.root, m.Name, send, nil, func(int64, int64) {})
	if err != nil {
		return fmt.Errorf("%s %s: %w", m.Op, m.Name, err)
	}
	verb, to := "received", "from"
	if send {
		verb, to = "sent", "to"
	}
	s.log("%s %s, %d bytes from %d on, %s %v", verb, m.Name, done.size, done.from, to, c.RemoteAddr())
	return nil
}

func (s *server) allowed(m message) error {
	switch {
	case m.Version != version:
		return fmt.Errorf("version %d of the protocol is not known, only %d", m.Version, version)
	case m.Op != "get" && m.Op != "put":
		return fmt.Errorf("no operation %q", m.Op)
	case m.Op == "put" && s.readOnly:
		return errors.New("the directory is served to be read only")
	}
	return checkName(m.Name)
}
