package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

type pingCmd struct {
	Server  bool   `short:"s" xor:"side" required:"" help:"Serve one client."`
	Client  bool   `short:"c" xor:"side" required:"" help:"Connect to a server."`
	Addr    string `short:"a" help:"Address to connect to, or to listen on (default all)."`
	Port    int    `short:"p" default:"7174" help:"Port."`
	Count   int    `short:"C" help:"Rounds; 0 is for ever."`
	Size    int    `short:"S" default:"64" help:"Bytes a round, ${pingMin} to 65536."`
	Verbose bool   `short:"v" help:"Print the data."`
	Check   bool   `short:"V" name:"validate" help:"Compare what comes back with what was sent."`
}

// The size limits are rping's: a round's text must fit, and a server takes no
// more than its buffer holds.
const (
	pingMin = 27
	pingMax = 64 << 10
)

func (c *pingCmd) Run(ctx context.Context) error {
	if c.Size < pingMin || c.Size > pingMax {
		return fmt.Errorf("size %d is not in %d..%d", c.Size, pingMin, pingMax)
	}
	addr := joinPort(c.Addr, c.Port)
	if c.Client {
		return c.client(ctx, addr)
	}
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Fprintf(os.Stderr, "listening on %v\n", l.Addr())
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	return c.serve(ctx, req)
}

func joinPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// pinger is one side of rping's protocol. Each round:
//
//	client                                server
//	SEND: where my data is ─────────────►
//	               ◄──────────────────── RDMA READ it
//	               ◄──────────────────── SEND: go ahead
//	SEND: where it goes back to ────────►
//	               ◄──────────────────── RDMA WRITE it
//	               ◄──────────────────── SEND: go ahead
type pinger struct {
	*cm.Endpoint
	inbox *uverbs.MR // the peer's last message
	data  *uverbs.MR
}

const pingInfo = 16 // address, rkey, size; big endian

func (p *pinger) options() cm.Options {
	return cm.Options{
		Events:             true,
		Cap:                uverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: pingInfo},
		ResponderResources: 1,
		InitiatorDepth:     1,
		Setup: func(e *cm.Endpoint) (err error) {
			p.Endpoint = e
			if p.inbox, err = e.AllocMR(pingInfo, uverbs.AccessLocalWrite); err != nil {
				return err
			}
			if p.data, err = e.AllocMR(pingMax, uverbs.AccessAll); err != nil {
				return err
			}
			return p.postRecv()
		},
	}
}

func (p *pinger) postRecv() error {
	_, err := p.QP.PostRecv([]uverbs.RecvWR{{SGL: []uverbs.SGE{p.inbox.SGE(0, pingInfo)}}})
	return err
}

func (p *pinger) await(ctx context.Context, cq *uverbs.CQ) (uverbs.WC, error) {
	var wc [1]uverbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		return wc[0], err
	}
	err := wc[0].Err()
	if errors.Is(err, uverbs.WCFlushErr) {
		// The connection is over; why is known a moment later.
		select {
		case <-p.Done():
			err = p.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	return wc[0], err
}

func (p *pinger) do(ctx context.Context, wr uverbs.SendWR) error {
	wr.Flags = uverbs.SendSignaled
	if _, err := p.QP.PostSend([]uverbs.SendWR{wr}); err != nil {
		return err
	}
	if _, err := p.await(ctx, p.SendCQ); err != nil {
		return fmt.Errorf("%v: %w", wr.Opcode, err)
	}
	return nil
}

// tell sends where n bytes are.
func (p *pinger) tell(ctx context.Context, mr *uverbs.MR, n int) error {
	b := binary.BigEndian.AppendUint64(nil, mr.Addr())
	b = binary.BigEndian.AppendUint32(b, mr.RKey())
	b = binary.BigEndian.AppendUint32(b, uint32(n))
	return p.do(ctx, uverbs.SendWR{Opcode: uverbs.OpSend, Inline: b})
}

// hear waits for the peer's message.
func (p *pinger) hear(ctx context.Context) (addr uint64, rkey, size uint32, err error) {
	wc, err := p.await(ctx, p.RecvCQ)
	if err != nil {
		return 0, 0, 0, err
	}
	if wc.ByteLen != pingInfo {
		return 0, 0, 0, fmt.Errorf("peer sent %d bytes, not %d", wc.ByteLen, pingInfo)
	}
	b := bytes.Clone(p.inbox.Bytes())
	return binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:]), p.postRecv()
}

func (c *pingCmd) client(ctx context.Context, addr string) (err error) {
	p := new(pinger)
	d := cm.Dialer{Options: p.options()}
	if _, err := d.Dial(ctx, addr); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	back, err := p.AllocMR(c.Size, uverbs.AccessAll)
	if err != nil {
		return err
	}
	out, in := p.data.Bytes()[:c.Size], back.Bytes()
	for i := 0; c.Count == 0 || i < c.Count; i++ {
		fillPing(out, i)
		for _, mr := range []*uverbs.MR{p.data, back} {
			if err := p.tell(ctx, mr, c.Size); err != nil {
				return err
			}
			if _, _, _, err := p.hear(ctx); err != nil {
				return err
			}
		}
		if c.Check && !bytes.Equal(out, in) {
			return fmt.Errorf("round %d: data that came back differs", i)
		}
		if c.Verbose {
			fmt.Printf("ping data: %s\n", text(in))
		}
	}
	return nil
}

// text is b up to its zero.
func text(b []byte) []byte {
	b, _, _ = bytes.Cut(b, []byte{0})
	return b
}

// fillPing writes a round's text as rping does, zero-terminated.
func fillPing(b []byte, round int) {
	const first, last = 'A', 'z'
	n := copy(b, "rdma-ping-"+strconv.Itoa(round)+": ")
	ch := first + round%(last-first+1)
	for i := n; i < len(b); i++ {
		b[i] = byte(ch)
		if ch++; ch > last {
			ch = first
		}
	}
	b[len(b)-1] = 0
}

func (c *pingCmd) serve(ctx context.Context, req *cm.Request) (err error) {
	p := new(pinger)
	if _, err := req.Accept(ctx, p.options()); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	for {
		addr, rkey, size, err := p.hear(ctx)
		if errors.Is(err, cm.ErrDisconnected) {
			return nil
		}
		if err != nil {
			return err
		}
		if size > pingMax {
			return fmt.Errorf("peer offers %d bytes, more than %d", size, pingMax)
		}
		rdma := uverbs.SendWR{Opcode: uverbs.OpRDMARead, RemoteAddr: addr, RKey: rkey, SGL: []uverbs.SGE{p.data.SGE(0, int(size))}}
		if err := p.do(ctx, rdma); err != nil {
			return err
		}
		if c.Verbose {
			fmt.Printf("server ping data: %s\n", text(p.data.Bytes()[:size]))
		}
		if err := p.tell(ctx, p.data, int(size)); err != nil {
			return err
		}
		if rdma.RemoteAddr, rdma.RKey, _, err = p.hear(ctx); err != nil {
			return err
		}
		rdma.Opcode = uverbs.OpRDMAWrite
		if err := p.do(ctx, rdma); err != nil {
			return err
		}
		if err := p.tell(ctx, p.data, int(size)); err != nil {
			return err
		}
	}
}
