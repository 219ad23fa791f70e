package harness

import (
	"context"
	"io"
	"net"

	"github.com/goverbs/verbs/rsock"
)

// stream is one end on layer rsock. A context's deadline is the connection's.
type stream struct {
	net.Conn
	n       uint64
	scratch []byte
}

func (s *stream) deadline(ctx context.Context) error {
	d, _ := ctx.Deadline()
	return s.SetDeadline(d)
}

func (s *stream) Round(ctx context.Context) error {
	if err := s.deadline(ctx); err != nil {
		return err
	}
	if _, err := s.Write(fill(s.scratch, request(s.n))); err != nil {
		return err
	}
	if _, err := io.ReadFull(s, s.scratch); err != nil {
		return err
	}
	s.n++
	return verify(s.scratch, answer(s.n-1))
}

func dialRsock(ctx context.Context, addr string) (session, error) {
	c, err := (&rsock.Dialer{}).DialContext(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	return &stream{Conn: c, scratch: make([]byte, chunk)}, nil
}

func serveRsock(ctx context.Context, addr string, ready func(string)) error {
	l, err := new(rsock.ListenConfig).Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	defer l.Close()
	ready(l.Addr().String())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer c.Close()
			b := make([]byte, chunk)
			for n := uint64(0); ; n++ {
				_, err := io.ReadFull(c, b)
				if err == nil {
					err = verify(b, request(n))
				}
				if err == nil {
					_, err = c.Write(fill(b, answer(n)))
				}
				if err != nil {
					report(err)
					return
				}
			}
		}()
	}
}
