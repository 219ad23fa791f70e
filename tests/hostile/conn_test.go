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
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rconn"
	"github.com/goverbs/verbs/uverbs"
)

// errTooMuch is the error of a program that is offered more than it accepts.
var errTooMuch = errors.New("the program takes 4 KiB")

const connMaxLen = 4 << 10

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

func advertWith(p *peer, change func(*advert)) []byte {
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
			wg.Go(func() { s.report(r.RemoteAddr().String(), serveFlip(ctx, s, r)) })
		}
	})
	t.Cleanup(func() { cancel(); l.Close(); wg.Wait() })
}

func serveFlip(ctx context.Context, s *server, r *rconn.Request) error {
	shake, cancel := context.WithTimeout(ctx, s.handshakeTimeout)
	defer cancel()
	var note *rconn.LocalRegion
	c, err := r.Accept(shake, rconn.Options{Adverts: 2, Options: cm.Options{Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1}}, Setup: func(c *rconn.Conn) (err error) {
		note, err = c.Alloc(16, rconn.LocalWrite)
		return err
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	s.addConn(c.RemoteAddr().String(), []any{c, note})
	for {
		at, err := c.AwaitAdvert(ctx)
		if err == nil {
			err = c.PostRecvAdvert()
		}
		if err == nil && at.Len > connMaxLen {
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
			if err = c.Post(rconn.Send(note.Span(0, 1)).With(0, verbs.SendSignaled)); err == nil {
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
		if mine, err = c.Alloc(connMaxLen, rconn.ReadWrite); err == nil {
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
		ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
		defer cancel()
		copy(mine.Bytes(), b)
		var wc [1]verbs.WC
		err := c.Post(rconn.Advert(0, mine.Span(0, len(b))).With(0, verbs.SendSignaled))
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

// advertAttack returns an attack that sends a changed advertisement.
func advertAttack(name string, change func(*advert), want ...error) attack {
	return attack{name: name, want: want, do: func(p *peer) { p.send(advertWith(p, change)) }}
}

// errsRequest are the errors of a failed request, and of others that were flushed because of it.
var errsRequest = []error{verbs.WCRemAccessErr, verbs.WCRemInvReqErr, verbs.WCRemOpErr, verbs.WCFlushErr, verbs.ErrDisconnected}

var connAttacks = []attack{
	{name: "malformed advertisements in private data", private: func(p *peer) []byte {
		return advertWith(p, func(a *advert) { a.length = 0 })
	}, want: []error{errStaysOpen}, do: expectFlip},
	{name: "half an advertisement in private data", private: func(p *peer) []byte {
		return advertWith(p, func(*advert) {})[:20]
	}, want: []error{errStaysOpen}, do: expectFlip},
	advertAttack("another magic", func(a *advert) { a.magic++ }, rconn.ErrAdvert),
	advertAttack("version 0", func(a *advert) { a.version = 0 }, rconn.ErrAdvert),
	advertAttack("version 2", func(a *advert) { a.version = 2 }, rconn.ErrAdvert),
	advertAttack("access to nothing", func(a *advert) { a.access = 0 }, rconn.ErrAdvert),
	advertAttack("unknown access flags", func(a *advert) { a.access = 0x83 }, rconn.ErrAdvert),
	advertAttack("a wrong checksum", func(a *advert) { a.wrong = 1 }, rconn.ErrAdvert),
	advertAttack("no bytes", func(a *advert) { a.length = 0 }, rconn.ErrAdvert),
	advertAttack("all the bytes there are", func(a *advert) { a.length = ^uint64(0) }, rconn.ErrAdvert),
	advertAttack("bytes around the end of memory", func(a *advert) { a.addr = ^uint64(0) - 10 }, rconn.ErrAdvert),
	advertAttack("half of all memory", func(a *advert) { a.addr, a.length = 0, 1<<63-1 }, errTooMuch),
	advertAttack("nothing to be read", func(a *advert) { a.access = 1 }, rconn.ErrAccess),
	advertAttack("nothing to be written", func(a *advert) { a.access = 2 }, rconn.ErrAccess),
	advertAttack("a wrong key", func(a *advert) { a.key ^= 0xff }, errsRequest...),
	advertAttack("no address", func(a *advert) { a.addr = 0 }, errsRequest...),
	advertAttack("an address before its memory", func(a *advert) { a.addr -= ringAt + 1 }, errsRequest...),
	advertAttack("more than its memory", func(a *advert) { a.addr += peerSize - ringAt - 99 }, errsRequest...),
	{name: "memory that it deregisters", want: errsRequest, do: func(p *peer) {
		b := advertWith(p, func(*advert) {})
		p.deregister()
		p.send(b)
	}},
	{name: "nothing as an advertisement", want: []error{rconn.ErrAdvert}, do: func(p *peer) { p.send(nil) }},
	{name: "another message as an advertisement", want: []error{rconn.ErrAdvert}, do: func(p *peer) { p.send(testData(32)) }},
	{name: "a WRITE with immediate as an advertisement", needs: uverbs.FeatureImmediates, want: []error{rconn.ErrAdvert}, do: func(p *peer) {
		p.post(verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: 32})
	}},
	{name: "an immediate with an advertisement", needs: uverbs.FeatureImmediates, want: []error{errStaysOpen}, do: func(p *peer) {
		at := p.mem.Bytes()[ringAt:]
		copy(at, "hello")
		p.post(verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 1 << 31, Inline: advertWith(p, func(*advert) {})})
		labtest.Until(p.t, "the bytes to be turned over", func() bool { return p.ended() || at[0] == ^byte('h') })
	}},
	{name: "an advertisement that invalidates a key that nothing has", want: append([]error{rconn.ErrBroken}, errsRequest...), do: func(p *peer) {
		n := copy(p.mem.Bytes()[sendAt:recvAt], advertWith(p, func(*advert) {}))
		p.post(verbs.SendWR{Opcode: verbs.OpSendInv, RKey: 0x12345678, SGL: []verbs.SGE{p.mem.SGE(sendAt, n)}})
	}},
	{name: "a message that is too long", want: []error{rconn.ErrBroken, verbs.ErrDisconnected}, do: func(p *peer) { p.send(testData(33)) }},
	// On RoCE messages without a receive wait, at the peer's own cost.
	{name: "advertisements without end", want: []error{errStaysOpen}, siw: append([]error{errStaysOpen}, errsRequest...), do: func(p *peer) {
		for range 30 {
			if !p.send(advertWith(p, func(*advert) {})) {
				return
			}
		}
	}},
	{name: "leaves in the middle", want: errsRequest, do: func(p *peer) {
		for range 2 {
			p.send(advertWith(p, func(a *advert) { a.length = connMaxLen }))
		}
		p.Disconnect()
	}},
}

// expectFlip waits until the victim has flipped the bits in the peer's memory.
func expectFlip(p *peer) {
	at := p.mem.Bytes()[ringAt:]
	copy(at, "hello")
	p.send(advertWith(p, func(*advert) {}))
	labtest.Until(p.t, "the bytes to be turned over", func() bool { return p.ended() || at[0] == ^byte('h') })
}

var connLayer = layer{
	name: "rconn", serve: serveConn, dial: dialConn, private: func(*peer) []byte { return nil }, attacks: connAttacks,
	warm:    expectFlip,
	pending: func(n int) int { return 2 * n }, // its program accepts all requests
}
