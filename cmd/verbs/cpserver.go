package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/goverbs/verbs/rsock"
)

// cpServer serves a directory.
type cpServer struct {
	root     *os.Root
	readOnly bool
	log      func(format string, args ...any)
}

func (c *cpCmd) serve(ctx context.Context) error {
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
	s := &cpServer{root, c.ReadOnly, func(format string, args ...any) {
		if !c.Quiet {
			fmt.Printf(format+"\n", args...)
		}
	}}
	return s.serve(ctx, l)
}

// serve serves all who connect, at once, until ctx ends.
func (s *cpServer) serve(ctx context.Context, l net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		clients.Go(func() {
			defer context.AfterFunc(ctx, func() { breakOff(conn) })()
			if err := s.client(conn); err != nil {
				s.log("%v: %v", conn.RemoteAddr(), err)
			}
		})
	}
}

// client serves one client, and closes its connection.
func (s *cpServer) client(conn net.Conn) error {
	defer conn.Close()
	c := newCPConn(conn)
	m, err := c.hear()
	if err != nil {
		return err
	}
	err = checkName(m.Name)
	switch {
	case m.Version != cpVersion:
		err = fmt.Errorf("version %d of the protocol is not known, only %d", m.Version, cpVersion)
	case err != nil:
	case m.Op == "get":
		err = s.get(c, m)
	case m.Op == "put" && s.readOnly:
		err = errors.New("the directory is served to be read only")
	case m.Op == "put":
		err = s.put(c, m)
	default:
		err = fmt.Errorf("no operation %q", m.Op)
	}
	if err == nil {
		return nil
	}
	if _, theirs := err.(denial); !theirs {
		c.say(cpMessage{Error: err.Error(), Busy: errors.Is(err, errBusy)})
	}
	return fmt.Errorf("%s %s: %w", m.Op, m.Name, err)
}

func (s *cpServer) put(c *cpConn, m cpMessage) error {
	p, err := openPartial(s.root, m.Name)
	if err != nil {
		return err
	}
	defer p.Close()
	has, sum, err := p.has()
	if err != nil {
		return err
	}
	if err := c.say(has); err != nil {
		return err
	}
	agreed, err := c.hear()
	if err != nil {
		return err
	}
	agreed.Size, agreed.Mode = m.Size, m.Mode
	got, err := p.take(c, has, agreed, sum, func(int64) {})
	if err != nil {
		return err
	}
	s.log("received %s, %d bytes from %d on, from %v", m.Name, m.Size, agreed.Offset, c.RemoteAddr())
	return c.say(cpMessage{Size: m.Size, Sum: got})
}

func (s *cpServer) get(c *cpConn, m cpMessage) error {
	f, info, err := openSource(s.root, m.Name)
	if err != nil {
		return err
	}
	defer f.Close()
	offset, sum, err := agree(f, info.Size(), m)
	if err != nil {
		return err
	}
	if err := c.say(cpMessage{Size: info.Size(), Mode: uint32(info.Mode().Perm()), Offset: offset}); err != nil {
		return err
	}
	if err := c.sendFile(f, offset, info.Size(), sum, func(int64) {}); err != nil {
		return err
	}
	if _, err := c.hear(); err != nil { // the client has it, or says why not
		return err
	}
	s.log("sent %s, %d bytes from %d on, to %v", m.Name, info.Size(), offset, c.RemoteAddr())
	return nil
}
