package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/rsock"
)

// server serves any number of clients at once, until ctx ends.
type server struct {
	log    func(format string, args ...any)
	begins func(*side)
	report func(*result)
}

func (v *server) serve(ctx context.Context, addr string) error {
	l, err := new(rsock.ListenConfig).Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	defer l.Close()
	v.log("listening on %v", l.Addr())
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.Close()
			}
			return nil
		}
		if err != nil {
			return err
		}
		clients.Go(func() { v.client(ctx, conn) })
	}
}

// client serves one, run after run. That one fails is none of the others'
// business.
func (v *server) client(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	ctl := newControl(conn)
	for {
		m, err := ctl.receive(ctx)
		if errors.Is(err, io.EOF) || ctx.Err() != nil {
			return
		}
		if err == nil && m.Work == nil {
			err = errProtocol
		}
		if err == nil {
			err = v.run(ctx, ctl, *m.Work)
		} else {
			ctl.give(err)
		}
		if err != nil {
			if ctx.Err() == nil {
				v.log("client %v: %v", conn.RemoteAddr(), err)
			}
			return
		}
	}
}

func (v *server) run(ctx context.Context, ctl *control, w work) (err error) {
	if err := w.validate(); err != nil {
		ctl.give(err)
		return err
	}
	s, err := newSide(ctx, w, ctl, false)
	defer func() { err = s.leave(err) }()
	if err != nil {
		return err
	}
	s.token = newToken()
	if s.op.datagram {
		err = s.offerUD()
	} else {
		err = s.offer()
	}
	if err == nil {
		err = s.meet()
	}
	if err != nil {
		return s.why(err)
	}
	v.begins(s)
	o, err := s.play()
	if err != nil {
		return err
	}
	v.report(newResult(s, o))
	return s.compare(o)
}

// offer takes the client's connections, on a port of their own.
func (s *side) offer() error {
	l, err := cm.Listen(s.ctx, netip.AddrPortFrom(s.ctl.local(), 0).String())
	if err != nil {
		return err
	}
	defer l.Close()
	if err := s.ctl.send(message{Offer: &offer{Port: l.Addr().Port(), Token: s.token}}); err != nil {
		return err
	}
	s.hear()
	return s.accept(l)
}

func (s *side) offerUD() error {
	if err := s.openUD(); err != nil {
		return err
	}
	if err := s.ctl.send(message{Offer: &offer{Token: s.token}}); err != nil {
		return err
	}
	s.hear()
	return nil
}

// listenAddr is where a server listens: an address of the device, if one is
// named.
func listenAddr(device string, port int) (string, error) {
	a, err := deviceAddr(device)
	if err != nil || !a.IsValid() {
		return fmt.Sprintf(":%d", port), err
	}
	return netip.AddrPortFrom(a, uint16(port)).String(), nil
}
