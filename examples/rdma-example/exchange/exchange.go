// Package exchange is the work of rdma-example: a client writes a string into
// a server's memory with RDMA WRITE, reads it back with RDMA READ, and
// compares. Client and server also work with the C programs of that name.
//
//	client                                   server
//	Dial ──────────── connect ─────────────► Listener.Accept
//	buffer attributes ───── SEND ──────────► allocates as much
//	◄───────────────────── SEND ──────────── attributes of its buffer
//	source ───────────── RDMA WRITE ───────► buffer
//	destination ◄──────── RDMA READ ──────── buffer
//	compare; disconnect ───────────────────► Done
package exchange

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// DefaultPort is where the server listens unless told otherwise.
const DefaultPort = 20886

// attr describes a buffer to the peer: address, length, rkey, packed and in
// the machine's byte order, as the C programs have it.
type attr struct {
	addr   uint64
	length uint32
	rkey   uint32
}

const attrSize = 16

func (a attr) encode() []byte {
	b := binary.NativeEndian.AppendUint64(nil, a.addr)
	b = binary.NativeEndian.AppendUint32(b, a.length)
	return binary.NativeEndian.AppendUint32(b, a.rkey)
}

func decode(b []byte) attr {
	return attr{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint32(b[8:]), binary.NativeEndian.Uint32(b[12:])}
}

func (a attr) String() string {
	return fmt.Sprintf("buffer attr, addr: %#x , len: %d , stag : %#x", a.addr, a.length, a.rkey)
}

// peer is either side's connection and the memory for the peer's attributes.
type peer struct {
	*cm.Endpoint
	inbox *uverbs.MR
}

// options makes an endpoint that is ready for the peer's attributes.
func (p *peer) options() cm.Options {
	return cm.Options{
		Cap:                verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: attrSize},
		ResponderResources: 3,
		InitiatorDepth:     3,
		Setup: func(e *cm.Endpoint) (err error) {
			if p.inbox, err = e.AllocMR(attrSize, verbs.AccessLocalWrite); err != nil {
				return err
			}
			_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{p.inbox.SGE(0, attrSize)}})
			return err
		},
	}
}

// await waits for one completion.
func await(ctx context.Context, cq *uverbs.CQ) error {
	_, err := cq.Next(ctx)
	return err
}

// do posts one request and waits for it.
func (p *peer) do(ctx context.Context, wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := p.QP.PostSend(wr); err != nil {
		return err
	}
	if err := await(ctx, p.SendCQ); err != nil {
		return fmt.Errorf("%v: %w", wr.Opcode, err)
	}
	return nil
}

// receive waits for the peer's attributes.
func (p *peer) receive(ctx context.Context) (attr, error) {
	if err := await(ctx, p.RecvCQ); err != nil {
		return attr{}, fmt.Errorf("receive buffer attributes: %w", err)
	}
	return decode(p.inbox.Bytes()), nil
}

// Client connects to addr, writes text into the server's memory, reads it back
// and compares. What it does goes to out.
func Client(ctx context.Context, out io.Writer, addr, text string) (err error) {
	if text == "" {
		return errors.New("the text to copy is empty")
	}
	fmt.Fprintf(out, "Passed string is : %s , with count %d \n", text, len(text))
	fmt.Fprintf(out, "Trying to connect to server at : %s \n", addr)
	p := new(peer)
	d := cm.Dialer{Options: p.options()}
	if p.Endpoint, err = d.Dial(ctx, addr); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	fmt.Fprintln(out, "The client is connected successfully ")

	src, err := p.AllocMR(len(text), verbs.AccessAll)
	if err != nil {
		return err
	}
	dst, err := p.AllocMR(len(text), verbs.AccessAll)
	if err != nil {
		return err
	}
	copy(src.Bytes(), text)
	mine := attr{src.Addr(), uint32(src.Len()), src.RKey()}
	if err := p.do(ctx, verbs.SendWR{Opcode: verbs.OpSend, Inline: mine.encode()}); err != nil {
		return err
	}
	theirs, err := p.receive(ctx)
	if err != nil {
		return err
	}
	const line = "---------------------------------------------------------"
	fmt.Fprintf(out, "%s\n%v \n%s\n", line, theirs, line)
	if int(theirs.length) < len(text) {
		return fmt.Errorf("the server's buffer holds %d bytes, not %d", theirs.length, len(text))
	}
	for _, step := range []struct {
		op  verbs.Opcode
		buf *uverbs.MR
	}{{verbs.OpRDMAWrite, src}, {verbs.OpRDMARead, dst}} {
		wr := verbs.SendWR{Opcode: step.op, RemoteAddr: theirs.addr, RKey: theirs.rkey, SGL: []verbs.SGE{step.buf.SGE(0, len(text))}}
		if err := p.do(ctx, wr); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "source:      %q\ndestination: %q\n", src.Bytes(), dst.Bytes())
	if !bytes.Equal(src.Bytes(), dst.Bytes()) {
		return errors.New("source and destination buffers do not match")
	}
	fmt.Fprintln(out, "...\nSUCCESS, source and destination buffers match ")
	return nil
}

// Serve serves one client of l and returns when it has disconnected, with what
// it wrote.
func Serve(ctx context.Context, out io.Writer, l *cm.Listener) (written []byte, err error) {
	req, err := l.Accept(ctx)
	if err != nil {
		return nil, err
	}
	p := new(peer)
	if p.Endpoint, err = req.Accept(ctx, p.options()); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	fmt.Fprintf(out, "A new connection is accepted from %v \n", p.RemoteAddr())

	theirs, err := p.receive(ctx)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "The client has requested buffer length of : %d bytes \n", theirs.length)
	buf, err := p.AllocMR(int(theirs.length), verbs.AccessAll)
	if err != nil {
		return nil, err
	}
	mine := attr{buf.Addr(), uint32(buf.Len()), buf.RKey()}
	if err := p.do(ctx, verbs.SendWR{Opcode: verbs.OpSend, Inline: mine.encode()}); err != nil {
		return nil, err
	}
	select {
	case <-p.Done():
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := p.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return nil, err
	}
	fmt.Fprintln(out, "A disconnect event is received from the client...")
	return bytes.Clone(buf.Bytes()), nil
}
