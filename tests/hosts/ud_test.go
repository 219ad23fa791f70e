package hosts

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// udLayer is datagrams of cm, which may get lost: a lost one is sent again.
var udLayer = layer{name: "cm, UD", datagrams: true, serve: serveUD, dial: dialUD, died: []error{verbs.WCLocQPOpErr, verbs.WCFlushErr}}

const datagram = 1024

type datagrams struct{ d *cm.Datagrams }

func (d *datagrams) setup(e *cm.Endpoint) (err error) {
	d.d, err = cm.NewDatagrams(e, datagram)
	return err
}

func serveUD(ctx context.Context, addr string) (string, error) {
	l, err := (&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, addr)
	if err != nil {
		return "", err
	}
	go func() {
		defer l.Close()
		listen(func() (*cm.Request, error) { return l.Accept(ctx) }, func(req *cm.Request) {
			var d datagrams
			e, err := req.Accept(ctx, cm.Options{Setup: d.setup})
			if err != nil {
				return
			}
			defer e.Close()
			for b := make([]byte, datagram); ; {
				n, from, err := d.d.Recv(ctx, b)
				if err != nil || d.d.Reply(ctx, from, b[:n]) != nil {
					return
				}
			}
		})
	}()
	return l.Addr().String(), nil
}

type udSession struct {
	*cm.Endpoint
	datagrams
	before map[uint32]bool // sums of all that was sent
}

func dialUD(ctx context.Context, addr string) (_ session, err error) {
	s := udSession{before: map[uint32]bool{}}
	dialer := cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: cm.Options{Setup: s.setup}}
	s.Endpoint, err = dialer.Dial(ctx, addr)
	return &s, err
}

func (s *udSession) round(ctx context.Context, number, n int) error {
	stream, got := noise(number), make([]byte, datagram)
	for n = min(n, 16*datagram); n > 0; n -= datagram {
		sent := make([]byte, min(n, datagram))
		stream.Read(sent)
		for {
			s.before[crc32.ChecksumIEEE(sent)] = true
			if err := s.d.Send(ctx, s.Peer, sent); err != nil {
				return err
			}
			err := s.answer(ctx, sent, got)
			if err == nil {
				break
			}
			if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

func (s *udSession) poke() {} // it does not only wait

// answer waits for what was sent to come back, past answers to earlier ones that
// were taken for lost, or came twice. What no answer explains is never right.
func (s *udSession) answer(ctx context.Context, sent, b []byte) error {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	for {
		n, _, err := s.d.Recv(ctx, b)
		if err != nil {
			return err
		}
		if bytes.Equal(b[:n], sent) {
			return nil
		}
		if !s.before[crc32.ChecksumIEEE(b[:n])] {
			return fmt.Errorf("%w: %d bytes that were never sent", errData, n)
		}
	}
}
