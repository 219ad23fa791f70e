package ping

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
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/uverbs"
)

// peer is one side of rping's protocol. Each round:
//
//	client                                server
//	SEND: where my data is ─────────────►
//	               ◄──────────────────── RDMA READ it
//	               ◄──────────────────── SEND: go ahead
//	SEND: where it goes back to ────────►
//	               ◄──────────────────── RDMA WRITE it
//	               ◄──────────────────── SEND: go ahead
//
// Neither side waits for the completion of a SEND: the data is inline, and the sender
// receives a message before its queue is full.
type peer struct {
	*cm.Endpoint
	recvBuf *uverbs.MR // the peer's last message
	data    *uverbs.MR // what the client sends, or the server has read
	sends   uint64     // posted so far, and the last one's ID
	debug   bool
}

// buffer describes a buffer and is the only message of the protocol. The server also sends
// one, whose content has no meaning.
type buffer struct {
	addr uint64
	rkey uint32
	size uint32
}

const bufferSize = 16 // big endian

func (s buffer) bytes() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, bufferSize), s.addr)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, s.rkey), s.size)
}

func parseBuffer(b []byte) (buffer, error) {
	if len(b) != bufferSize {
		return buffer{}, fmt.Errorf("peer sent %d bytes, not %d", len(b), bufferSize)
	}
	return buffer{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}

// fits returns an error if a client offers more than the buffer holds.
func (s buffer) fits() error {
	if s.size > maxSize {
		return fmt.Errorf("peer offers %d bytes, more than %d", s.size, maxSize)
	}
	return nil
}

func (s buffer) String() string {
	return fmt.Sprintf("addr %#x rkey %#x size %d", s.addr, s.rkey, s.size)
}

// queues holds the sizes of the QP's queues, which are those of rping.
var queues = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 2, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: bufferSize}

func (p *peer) options() cm.Options {
	return cm.Options{
		Cap:                queues,
		ResponderResources: 1,
		InitiatorDepth:     1,
		Setup:              p.setup,
	}
}

// setup allocates the buffers and posts the receive before the peer can send.
func (p *peer) setup(e *cm.Endpoint) (err error) {
	p.Endpoint = e
	if p.recvBuf, err = e.AllocMR(bufferSize, verbs.AccessLocalWrite); err != nil {
		return err
	}
	if p.data, err = p.allocData(); err != nil {
		return err
	}
	return p.postRecv()
}

func (p *peer) allocData() (*uverbs.MR, error) {
	return p.AllocMR(maxSize, verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
}

func (p *peer) postRecv() error {
	_, err := p.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.recvBuf.SGE(0, bufferSize)}})
	return err
}

// post polls the completions of earlier requests and posts a request.
func (p *peer) post(wr verbs.SendWR) error {
	if err := p.reap(); err != nil {
		return err
	}
	p.sends++
	wr.ID, wr.Flags = p.sends, verbs.SendSignaled
	_, err := p.QP.PostSend(wr)
	return err
}

func (p *peer) reap() error {
	var wcs [4]verbs.WC
	for {
		n := p.QP.SendCQ().Poll(wcs[:])
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

// transfer transfers n bytes between the server's memory and the client's.
func (p *peer) transfer(ctx context.Context, op verbs.Opcode, at buffer, n uint32) error {
	err := p.post(verbs.SendWR{Opcode: op, RemoteAddr: at.addr, RKey: at.rkey, SGL: []verbs.SGE{p.data.SGE(0, int(n))}})
	var wc verbs.WC
	for err == nil && wc.ID != p.sends {
		wc, err = p.QP.SendCQ().Next(ctx)
	}
	if err != nil {
		return fmt.Errorf("%v: %w", op, p.cause(ctx, err))
	}
	p.debugf("%v of %d bytes, %v", op, n, at)
	return nil
}

// send sends the location of the first n bytes of mr.
func (p *peer) send(ctx context.Context, mr *uverbs.MR, n int) error {
	at := buffer{mr.Addr(), mr.RKey(), uint32(n)}
	if err := p.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: at.bytes()}); err != nil {
		return fmt.Errorf("send: %w", p.cause(ctx, err))
	}
	p.debugf("sent %v", at)
	return nil
}

// receive waits for the peer's message.
func (p *peer) receive(ctx context.Context) (at buffer, err error) {
	wc, err := p.QP.RecvCQ().Next(ctx)
	if err != nil {
		return at, fmt.Errorf("receive: %w", p.cause(ctx, err))
	}
	if at, err = parseBuffer(bytes.Clone(p.recvBuf.Bytes()[:min(wc.ByteLen, bufferSize)])); err != nil {
		return at, err
	}
	p.debugf("received %v", at)
	return at, p.postRecv()
}

// cause returns the cause of err: requests are flushed after another has failed or the
// connection has ended, and fail in other ways if the peer dies during one. The end of the
// connection is reported a moment later, so cause waits for it.
func (p *peer) cause(ctx context.Context, err error) error {
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

func (p *peer) debugf(format string, args ...any) {
	if p.debug {
		fmt.Fprintln(os.Stderr, cli.Printable(fmt.Sprintf(format, args...)))
	}
}
