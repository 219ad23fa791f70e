package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// UD uses datagrams of package cm, which may get lost: a lost one is sent again.
var UD = &Layer{Name: "datagrams", Datagrams: true, Listen: listenUD, Dial: dialUD, PeerGoneErrors: []error{verbs.WCLocQPOpErr, verbs.WCFlushErr}}

const datagram = 1024

// datagrams is an end of layer UD.
type datagrams struct {
	simple
	*cm.Endpoint
	d    *cm.Datagrams
	mine Key
	sent uint64
}

func (p *datagrams) setup(e *cm.Endpoint) (err error) {
	p.Endpoint = e
	p.d, err = cm.NewDatagrams(e, datagram)
	return err
}

func listenUD(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, err := (&cm.ListenConfig{PortSpace: cm.PortSpaceUDP}).Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return Serve(ctx, l, l.Accept, func(ctx context.Context, req *cm.Request) error {
		var p datagrams
		e, err := req.Accept(ctx, cm.Options{Setup: p.setup})
		if err != nil {
			return err
		}
		defer e.Close()
		for b := make([]byte, datagram); ; {
			next, stop := idle(ctx)
			m, err := p.d.Recv(next, b)
			stop()
			if err == nil {
				err = p.d.Reply(ctx, m.From, b[:m.Len])
			}
			if err != nil {
				if err = unlessIdle(ctx, err); err == errIdle {
					return nil
				}
				return err
			}
		}
	}, report, nil), nil
}

func dialUD(ctx context.Context, addr string) (Session, error) {
	p := &datagrams{mine: Key(rand.Uint64())}
	_, err := (&cm.Dialer{PortSpace: cm.PortSpaceUDP, Options: cm.Options{Setup: p.setup}}).Dial(ctx, addr)
	return p, err
}

// Round sends datagrams, at least one, each until its answer has arrived.
func (p *datagrams) Round(ctx context.Context, n int) error {
	for n = min(max(n, 1), 16*datagram); n > 0; n -= datagram {
		p.sent++
		b := p.mine.Fill(make([]byte, max(8, min(n, datagram))), p.sent)
		for {
			if err := p.d.Send(ctx, p.Peer, b); err != nil {
				return err
			}
			err := p.waitAnswer(ctx, b)
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

// waitAnswer waits until the datagram is returned. It ignores answers to earlier ones that were
// taken for lost or are duplicates. Any other datagram is an error.
func (p *datagrams) waitAnswer(ctx context.Context, sent []byte) error {
	ctx, stop := context.WithTimeout(ctx, time.Second)
	defer stop()
	for b := make([]byte, datagram); ; {
		m, err := p.d.Recv(ctx, b)
		if err != nil {
			return err
		}
		n := m.Len
		if bytes.Equal(b[:n], sent) {
			return nil
		}
		if n < 8 {
			return fmt.Errorf("%w: %d bytes that were never sent", ErrData, n)
		}
		seq := binary.BigEndian.Uint64(b)
		if err := p.mine.Check("datagram", b[:n], seq, n); err != nil || seq >= p.sent {
			return fmt.Errorf("%w: datagram %d that was never sent: %v", ErrData, seq, err)
		}
	}
}
