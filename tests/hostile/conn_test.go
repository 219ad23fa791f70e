package hostile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
)

// errTooMuch is the error of a program that is offered more than it accepts.
var errTooMuch = errors.New("the program takes 4 KiB")

const connMost = 4 << 10

// advert is an advertisement of package rconn, as documented there.
type advert struct {
	magic           uint16
	version, access byte
	tag             uint32
	addr, length    uint64
	key             uint32
	wrong           uint32 // change of the checksum
}

func (a advert) bytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, a.magic)
	b = append(b, a.version, a.access)
	b = binary.BigEndian.AppendUint32(b, a.tag)
	b = binary.BigEndian.AppendUint64(b, a.addr)
	b = binary.BigEndian.AppendUint64(b, a.length)
	b = binary.BigEndian.AppendUint32(b, a.key)
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))^a.wrong)
}

func advertOf(p *peer, change func(*advert)) []byte {
	a := advert{magic: 0xad7e, version: 1, access: 3, addr: p.mem.Addr() + ringAt, length: 100, key: p.mem.RKey()}
	change(&a)
	return a.bytes()
}

// serveConn runs a program that reads the memory that peers advertise, writes it back with
// the bits flipped, and sends a message.
func serveConn(t *testing.T, s *server) {
	ctx, cancel := context.WithCancel(t.Context())
	l := labtest.Must(rconn.Listen(ctx, labtest.AddrOf(s.device)+":0"))(t)
	s.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			r, err := l.Accept(ctx)
			if err != nil {
				return
			}
			wg.Go(func() { s.report(r.RemoteAddr().String(), turnOver(ctx, s, r)) })
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
}

func turnOver(ctx context.Context, s *server, r *rconn.Request) error {
	shake, cancel := context.WithTimeout(ctx, s.shake)
	defer cancel()
	var note *rconn.LocalRegion
	c, err := r.Accept(shake, rconn.Options{Adverts: 2, SendQueue: 8, RecvQueue: 1, Setup: func(c *rconn.Conn) (err error) {
		note, err = c.Alloc(16, rconn.LocalWrite)
		return err
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	s.up(c.RemoteAddr().String(), []any{c, note})
	for {
		at, err := c.AwaitAdvert(ctx)
		if err == nil {
			err = c.PostRecvAdvert()
		}
		if err == nil && at.Len > connMost {
			err = errTooMuch
		}
		if err != nil {
			return err
		}
		step, cancel := context.WithTimeout(ctx, 20*time.Second)
		b := make([]byte, at.Len)
		if err = c.Get(step, b, at.At(0)); err == nil {
			for i := range b {
				b[i] = ^b[i]
			}
			err = c.Put(step, at.At(0), b)
		}
		if err == nil {
			if err = c.PostSend(0, verbs.SendSignaled, note.Span(0, 1)); err == nil {
				err = c.Await(step, rconn.Sends, make([]verbs.WC, 1))
			}
		}
		cancel()
		if err != nil {
			return err
		}
	}
}

func dialConn(ctx context.Context, addr string) (client, error) {
	var mine, note *rconn.LocalRegion
	c, err := (&rconn.Dialer{Options: rconn.Options{Setup: func(c *rconn.Conn) (err error) {
		if mine, err = c.Alloc(connMost, rconn.ReadWrite); err == nil {
			note, err = c.Alloc(16, rconn.LocalWrite)
		}
		if err == nil {
			err = c.PostRecv(0, note.All())
		}
		return err
	}}}).Dial(ctx, addr)
	if err != nil {
		return client{}, err
	}
	return client{end: c.Close, echo: func(b []byte) ([]byte, error) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		copy(mine.Bytes(), b)
		var wc [1]verbs.WC
		err := c.PostAdvert(0, verbs.SendSignaled, 0, mine.Span(0, len(b)))
		for _, d := range []rconn.Direction{rconn.Sends, rconn.Recvs} {
			if err == nil {
				if err = c.Await(ctx, d, wc[:]); err == nil {
					err = wc[0].Err()
				}
			}
		}
		if err == nil {
			err = c.PostRecv(0, note.All())
		}
		got := bytes.Clone(mine.Bytes()[:len(b)])
		for i := range got {
			got[i] = ^got[i]
		}
		return got, err
	}}, nil
}

// connAdverts returns an attack that sends a changed advertisement.
func connAdverts(name string, change func(*advert), want ...error) attack {
	return attack{name: name, want: want, do: func(p *peer) { p.send(advertOf(p, change)) }}
}

// fails are the errors of a failed request, and of others that were flushed because of it.
var fails = []error{verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCFlushErr, verbs.ErrDisconnected}

var connAttacks = []attack{
	{name: "malformed advertisements in private data", private: func(p *peer) []byte {
		return advertOf(p, func(a *advert) { a.length = 0 })
	}, want: []error{errGoesOn}, do: turnsOver},
	{name: "half an advertisement in private data", private: func(p *peer) []byte {
		return advertOf(p, func(*advert) {})[:20]
	}, want: []error{errGoesOn}, do: turnsOver},
	connAdverts("another magic", func(a *advert) { a.magic++ }, rconn.ErrAdvert),
	connAdverts("version 0", func(a *advert) { a.version = 0 }, rconn.ErrAdvert),
	connAdverts("version 2", func(a *advert) { a.version = 2 }, rconn.ErrAdvert),
	connAdverts("access to nothing", func(a *advert) { a.access = 0 }, rconn.ErrAdvert),
	connAdverts("access that nobody knows", func(a *advert) { a.access = 0x83 }, rconn.ErrAdvert),
	connAdverts("a wrong checksum", func(a *advert) { a.wrong = 1 }, rconn.ErrAdvert),
	connAdverts("no bytes", func(a *advert) { a.length = 0 }, rconn.ErrAdvert),
	connAdverts("all the bytes there are", func(a *advert) { a.length = ^uint64(0) }, rconn.ErrAdvert),
	connAdverts("bytes around the end of memory", func(a *advert) { a.addr = ^uint64(0) - 10 }, rconn.ErrAdvert),
	connAdverts("half of all memory", func(a *advert) { a.addr, a.length = 0, 1<<63-1 }, errTooMuch),
	connAdverts("nothing to be read", func(a *advert) { a.access = 1 }, rconn.ErrAccess),
	connAdverts("nothing to be written", func(a *advert) { a.access = 2 }, rconn.ErrAccess),
	connAdverts("a wrong key", func(a *advert) { a.key ^= 0xff }, fails...),
	connAdverts("no address", func(a *advert) { a.addr = 0 }, fails...),
	connAdverts("an address before its memory", func(a *advert) { a.addr -= ringAt + 1 }, fails...),
	connAdverts("more than its memory", func(a *advert) { a.addr += peerSize - ringAt - 99 }, fails...),
	{name: "memory that it deregisters", want: fails, do: func(p *peer) {
		b := advertOf(p, func(*advert) {})
		p.forget()
		p.send(b)
	}},
	{name: "nothing as an advertisement", want: []error{rconn.ErrAdvert}, do: func(p *peer) { p.send(nil) }},
	{name: "another message as an advertisement", want: []error{rconn.ErrAdvert}, do: func(p *peer) { p.send(text(32)) }},
	{name: "a WRITE with immediate as an advertisement", only: labtest.RXE, want: []error{rconn.ErrAdvert}, do: func(p *peer) {
		p.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: 32})
	}},
	{name: "an immediate with an advertisement", only: labtest.RXE, want: []error{errGoesOn}, do: func(p *peer) {
		at := p.mem.Bytes()[ringAt:]
		copy(at, "hello")
		p.post(verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 1 << 31, Inline: advertOf(p, func(*advert) {})})
		labtest.Until(p.t, "the bytes to be turned over", func() bool { return p.ended() || at[0] == ^byte('h') })
	}},
	{name: "an advertisement that invalidates a key that nothing has", want: append([]error{rconn.ErrBroken}, fails...), do: func(p *peer) {
		n := copy(p.mem.Bytes()[sendAt:recvAt], advertOf(p, func(*advert) {}))
		p.post(verbs.SendWR{Opcode: verbs.OpSendInv, InvalidateRKey: 0x12345678, SGL: []verbs.SGE{p.mem.SGE(sendAt, n)}})
	}},
	{name: "a message that is too long", want: []error{rconn.ErrBroken, verbs.ErrDisconnected}, do: func(p *peer) { p.send(text(33)) }},
	// On RoCE messages without a receive wait, at the peer's own cost.
	{name: "advertisements without end", want: []error{errGoesOn}, siw: append([]error{errGoesOn}, fails...), do: func(p *peer) {
		for range 30 {
			if !p.send(advertOf(p, func(*advert) {})) {
				return
			}
		}
	}},
	{name: "leaves in the middle", want: fails, do: func(p *peer) {
		for range 2 {
			p.send(advertOf(p, func(a *advert) { a.length = connMost }))
		}
		p.Disconnect()
	}},
}

// turnsOver waits until the victim has flipped the bits in the peer's memory.
func turnsOver(p *peer) {
	at := p.mem.Bytes()[ringAt:]
	copy(at, "hello")
	p.send(advertOf(p, func(*advert) {}))
	labtest.Until(p.t, "the bytes to be turned over", func() bool { return p.ended() || at[0] == ^byte('h') })
}

var connLayer = layer{
	name: "rconn", serve: serveConn, dial: dialConn, private: func(*peer) []byte { return nil }, attacks: connAttacks,
	warm:    turnsOver,
	pending: func(n int) int { return 2 * n }, // its program accepts all requests
}
