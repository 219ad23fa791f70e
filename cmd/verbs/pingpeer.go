package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// pinger is one side of rping's protocol. Each round:
//
//	client                                server
//	SEND: where my data is ─────────────►
//	               ◄──────────────────── RDMA READ it
//	               ◄──────────────────── SEND: go ahead
//	SEND: where it goes back to ────────►
//	               ◄──────────────────── RDMA WRITE it
//	               ◄──────────────────── SEND: go ahead
//
// Sends are not waited for: they are inline, and whoever sends hears from the
// peer before the queue is full.
type pinger struct {
	pingConn
	qp    *uverbs.QP
	inbox *uverbs.MR // the peer's last message
	data  *uverbs.MR // what the client sends, or the server got
	sends uint64     // posted, which numbers them
	debug bool
}

// pingConn is a connection: an endpoint of package cm, or one made by hand.
type pingConn interface {
	AllocMR(size int, access verbs.Access) (*uverbs.MR, error)
	Done() <-chan struct{}
	Err() error
	LocalAddr() cm.Addr
	RemoteAddr() cm.Addr
	Close() error
}

// pingSpot says where memory is; it is the protocol's only message. The server
// goes ahead with one, too, whose content means nothing.
type pingSpot struct {
	addr uint64
	rkey uint32
	size uint32
}

const pingSpotSize = 16 // big endian

func (s pingSpot) bytes() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, pingSpotSize), s.addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, s.rkey), s.size)
}

func parsePingSpot(b []byte) (pingSpot, error) {
	if len(b) != pingSpotSize {
		return pingSpot{}, fmt.Errorf("peer sent %d bytes, not %d", len(b), pingSpotSize)
	}
	return pingSpot{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// fits says whether there is room for what a client offers.
func (s pingSpot) fits() error {
	if s.size > pingMax {
		return fmt.Errorf("peer offers %d bytes, more than %d", s.size, pingMax)
	}
	return nil
}

func (s pingSpot) String() string {
	return fmt.Sprintf("addr %#x rkey %#x size %d", s.addr, s.rkey, s.size)
}

// pingQueues is the size of the QP's queues, which is rping's.
var pingQueues = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: pingSpotSize}

func (p *pinger) options() cm.Options {
	return cm.Options{
		Cap:                pingQueues,
		ResponderResources: 1,
		InitiatorDepth:     1,
		Setup:              func(e *cm.Endpoint) error { return p.setup(e, e.QP) },
	}
}

// setup makes the buffers and posts the receive, before the peer can send.
func (p *pinger) setup(conn pingConn, qp *uverbs.QP) (err error) {
	p.pingConn, p.qp = conn, qp
	if p.inbox, err = conn.AllocMR(pingSpotSize, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if p.data, err = p.allocData(); err != nil {
		return err
	}
	return p.postRecv()
}

func (p *pinger) allocData() (*uverbs.MR, error) {
	return p.AllocMR(pingMax, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
}

func (p *pinger) postRecv() error {
	_, err := p.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.inbox.SGE(0, pingSpotSize)}})
	return err
}

// post posts a request, and takes the completions of those before it.
func (p *pinger) post(wr verbs.SendWR) error {
	if err := p.reap(); err != nil {
		return err
	}
	p.sends++
	wr.ID, wr.Flags = p.sends, verbs.SendSignaled
	_, err := p.qp.PostSend(wr)
	return err
}

func (p *pinger) reap() error {
	var wcs [4]verbs.WC
	for {
		n := p.qp.SendCQ().Poll(wcs[:])
		for i := range wcs[:n] {
			if err := wcs[i].Err(); err != nil {
				return err
			}
		}
		if n < len(wcs) {
			return nil
		}
	}
}

// move carries data between the server's memory and the client's.
func (p *pinger) move(ctx context.Context, op verbs.Opcode, at pingSpot, n uint32) error {
	err := p.post(verbs.SendWR{Opcode: op, RemoteAddr: at.addr, RKey: at.rkey, SGL: []verbs.SGE{p.data.SGE(0, int(n))}})
	var wc verbs.WC
	for err == nil && wc.ID != p.sends {
		wc, err = p.qp.SendCQ().Next(ctx)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", op, p.why(ctx, err))
	}
	p.debugf("%v of %d bytes, %v", op, n, at)
	return nil
}

// tell sends where n bytes are.
func (p *pinger) tell(ctx context.Context, mr *uverbs.MR, n int) error {
	spot := pingSpot{mr.Addr(), mr.RKey(), uint32(n)}
	if err := p.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: spot.bytes()}); err != nil {
		return fmt.Errorf("send: %w", p.why(ctx, err))
	}
	p.debugf("sent %v", spot)
	return nil
}

// hear waits for the peer's message.
func (p *pinger) hear(ctx context.Context) (spot pingSpot, err error) {
	wc, err := p.qp.RecvCQ().Next(ctx)
	if err != nil {
		return spot, fmt.Errorf("receive: %w", p.why(ctx, err))
	}
	if spot, err = parsePingSpot(bytes.Clone(p.inbox.Bytes()[:min(wc.ByteLen, pingSpotSize)])); err != nil {
		return spot, err
	}
	p.debugf("received %v", spot)
	return spot, p.postRecv()
}

// why is the reason for err, which may only be its consequence: requests are
// flushed when another has failed or the connection ended, and a peer that dies
// in the middle of one has it fail in other ways. That the connection ended is
// known a moment after.
func (p *pinger) why(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, verbs.WCFlushErr) {
		if first := p.reap(); first != nil {
			err = first
		}
	}
	select {
	case <-p.Done():
		if errors.Is(err, verbs.WCFlushErr) {
			return p.Err()
		}
		return fmt.Errorf("%w (%w)", p.Err(), err)
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(5 * time.Second):
		return err
	}
}

func (p *pinger) debugf(format string, args ...any) {
	if p.debug {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	}
}
