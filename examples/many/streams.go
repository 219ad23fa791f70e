package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"sync"

	"github.com/goverbs/verbs/rsock"
)

// streams is a server of package rsock with a goroutine for each connection, as net/http has.
type streams struct {
	listener net.Listener
	dialer   rsock.Dialer
	mu       sync.Mutex
	clients  []net.Conn
}

func newStreams(ctx context.Context, addr string, conns int) (*streams, error) {
	opt := rsock.Options{IdleBuffer: 8 << 10, SpinTime: -1}
	l, err := (&rsock.ListenConfig{
		Options: opt, Backlog: min(conns, 0xffff), MaxConns: -1, HandshakeTimeout: -1,
	}).Listen(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				var b [512]byte // io.Copy would take 64 KiB
				for {
					n, err := c.Read(b[:])
					if err != nil {
						return
					}
					if _, err := c.Write(b[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	return &streams{listener: l, dialer: rsock.Dialer{Options: opt, Timeout: -1}}, nil
}

func (s *streams) dial(ctx context.Context, _ int) (func(context.Context) error, error) {
	c, err := s.dialer.DialContext(ctx, "rdma", s.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.clients = append(s.clients, c)
	s.mu.Unlock()
	return func(context.Context) error {
		var answer [5]byte
		if _, err := c.Write([]byte("hello")); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, answer[:]); err != nil {
			return err
		}
		if !bytes.Equal(answer[:], []byte("hello")) {
			return errAnswer
		}
		return nil
	}, nil
}

func (s *streams) close(ctx context.Context) error {
	for _, c := range s.clients {
		if err := c.Close(); err != nil {
			return err
		}
	}
	return s.listener.(*rsock.Listener).Shutdown(ctx)
}
