package interop

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// udaddyPort is the port of udaddy, which cannot be changed.
const udaddyPort = "7174"

// udaddy implements the protocol of udaddy. When the server has accepted all clients, they
// send their messages, each with the number of its QP as immediate, to which the answers
// go; when the server has received all, it sends as many.
//
// C's server answers with the start of its buffer, which holds the GRH and then the last
// message.
type udaddy struct {
	connections, messages, size int
}

// udaddyConn is one of the connections.
type udaddyConn struct {
	udaddy
	*cm.Datagrams
	e *cm.Endpoint
}

func (d udaddy) options(k *udaddyConn) cm.Options {
	return cm.Options{
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: d.messages, MaxSendSGE: 1, MaxRecvSGE: 1},
		Setup: func(e *cm.Endpoint) (err error) {
			k.udaddy, k.e = d, e
			k.Datagrams, err = cm.NewDatagrams(e, d.size)
			return err
		},
	}
}

func (d udaddy) newConns() []*udaddyConn {
	talks := make([]*udaddyConn, d.connections)
	for i := range talks {
		talks[i] = new(udaddyConn)
	}
	return talks
}

func closeUdaddyConns(talks []*udaddyConn) (err error) {
	for _, k := range talks {
		if k.e != nil {
			err = errors.Join(err, k.e.Close())
		}
	}
	return err
}

// send sends all messages.
func (k *udaddyConn) send(message func(imm uint32) error) error {
	for range k.messages {
		if err := message(k.e.QP.Num()); err != nil {
			return err
		}
	}
	return nil
}

// recv receives all messages, and returns the sender of the last.
func (k *udaddyConn) recv(ctx context.Context, check func(msg []byte) error) (from cm.Sender, err error) {
	buf := make([]byte, k.size)
	for i := range k.messages {
		m, err := k.Recv(ctx, buf)
		switch {
		case err != nil:
			return from, fmt.Errorf("message %d: %w", i, err)
		case m.Len != k.size || !m.WithImm || m.Imm != m.From.QPNum:
			return from, fmt.Errorf("message %d: %+v", i, m)
		}
		if err := check(buf); err != nil {
			return from, err
		}
		from = m.From
	}
	return from, nil
}

func (d udaddy) serve(ctx context.Context, l *cm.Listener) (err error) {
	talks := d.newConns()
	defer func() { err = errors.Join(err, closeUdaddyConns(talks)) }()
	for _, k := range talks {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if _, err := r.Accept(ctx, d.options(k)); err != nil {
			return err
		}
	}
	return forEachConn(talks, func(_ int, k *udaddyConn) error {
		from, err := k.recv(ctx, func([]byte) error { return nil })
		if err != nil {
			return err
		}
		return k.send(func(imm uint32) error { return k.ReplyImm(ctx, from, make([]byte, k.size), imm) })
	})
}

func (d udaddy) join(ctx context.Context, addr string) (err error) {
	talks := d.newConns()
	defer func() { err = errors.Join(err, closeUdaddyConns(talks)) }()
	dial := func(_ int, k *udaddyConn) error {
		dialer := cm.Dialer{Options: d.options(k), PortSpace: cm.PortSpaceUDP}
		_, err := dialer.Dial(ctx, addr)
		return err
	}
	if err := forEachConn(talks, dial); err != nil {
		return err
	}
	return forEachConn(talks, func(i int, k *udaddyConn) error {
		msg := make([]byte, k.size)
		for j := range msg {
			msg[j] = byte(i + 3*j)
		}
		if err := k.send(func(imm uint32) error { return k.SendImm(ctx, k.e.Peer, msg, imm) }); err != nil {
			return err
		}
		_, err := k.recv(ctx, func(answer []byte) error {
			if n := min(verbs.GRHSize, k.size); !bytes.Equal(answer[n:], msg[:k.size-n]) {
				return fmt.Errorf("the answer is %x", answer)
			}
			return nil
		})
		return err
	})
}

// args returns the arguments of C's program.
func (d udaddy) args(role, addr string) []string {
	return []string{role, addr, "-c", strconv.Itoa(d.connections), "-C", strconv.Itoa(d.messages), "-S", strconv.Itoa(d.size)}
}

// TestUdaddy exchanges datagrams with rdma-core's udaddy.
func TestUdaddy(t *testing.T) {
	labtest.RequireKernel(t)
	labtest.Each(t, func(t *testing.T, device string) {
		addr := labtest.AddrOf(device) + ":" + udaddyPort
		listen := cm.ListenConfig{PortSpace: cm.PortSpaceUDP}
		if labtest.IWARP(t, device) {
			if l, err := listen.Listen(timeLimit(t), addr); err == nil { // an address need not lead to one device
				labtest.Close(t, l)
			} else if !errors.Is(err, errors.ErrUnsupported) {
				t.Error(err)
			}
			if err := (udaddy{1, 1, 1}).join(timeLimit(t), addr); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("iWARP has no datagrams: %v", err)
			}
			return
		}
		for _, d := range labtest.Few(2, []udaddy{{1, 10, 100}, {3, 1, 1}, {20, 10, 100}, {1, 200, 1024}}) {
			t.Run(fmt.Sprintf("Go server/%+v", d), func(t *testing.T) {
				ctx := timeLimit(t)
				l := labtest.Made(listen.Listen(ctx, addr))(t)
				client := start(t, "udaddy", d.args("-s", labtest.AddrOf(device))...)
				if err := d.serve(ctx, l); err != nil {
					t.Error(err)
				}
				client.Wait()
			})
			t.Run(fmt.Sprintf("Go client/%+v", d), func(t *testing.T) {
				server := start(t, "udaddy", d.args("-b", labtest.AddrOf(device))...)
				labtest.WaitListening(t, udaddyPort)
				if err := d.join(timeLimit(t), addr); err != nil {
					t.Error(err)
				}
				server.Wait()
			})
		}
	})
}
