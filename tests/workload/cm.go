package workload

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// CM is packages cm and uverbs: memory of the peer that is written, read and counted
// in, and messages, some at a time.
var CM = &Layer{
	Name: "cm", Listen: listenCM,
	Dial: func(ctx context.Context, addr string) (Session, error) {
		return DialCM(ctx, addr, func(*cm.Options) {})
	},
	Died: []error{verbs.WCRetryExcErr, verbs.WCFlushErr, verbs.WCLocQPOpErr, verbs.ErrDisconnected},
}

const (
	message = 64 << 10   // most bytes of a message
	window  = 4          // messages without an answer
	depth   = window + 1 // receives, and sends under way
)

// task is what the side that dialed sends first in a round: where it has written to,
// and how many messages follow.
type task struct{ Region, Off, N, Messages uint32 }

func (t task) bytes() []byte {
	b, _ := binary.Append(nil, binary.BigEndian, t)
	return b
}

// do does what the peer asks for with regions of memory, which it has written to:
// checks that, and leaves an answer there to be read.
func (p *party) do(b []byte, seq uint64, regions ...[]byte) (messages int, err error) {
	var t task
	if n, err := binary.Decode(b, binary.BigEndian, &t); err != nil || n != len(b) || int(t.Region) >= len(regions) || t.Off+t.N > room {
		return 0, fmt.Errorf("%w: task % x: %v", ErrData, b, err)
	}
	at := regions[t.Region][t.Off:][:t.N]
	if err := p.theirs.Check("memory", at, seq, len(at)); err != nil {
		return 0, err
	}
	p.mine.Fill(at, seq)
	return int(t.Messages), nil
}

// Endpoint is an end of layer CM.
type Endpoint struct {
	*cm.Endpoint
	MR   *uverbs.MR // for the peer to use
	Addr uint64     // of the peer's
	RKey uint32

	party
	local            *uverbs.MR // what is written, what is read, and the result of an atomic
	in, out          *uverbs.MR // of messages
	posted, done     uint64     // send requests
	sent, came       uint64     // messages
	arrived          []verbs.WC // not yet taken
	recvWCs, sendWCs [depth]verbs.WC
	atomics          bool
	counter          uint64 // what the peer's must be
}

func (p *Endpoint) setup(e *cm.Endpoint) (err error) {
	p.Endpoint = e
	access, atomics := shared(e.PD.Context())
	p.atomics = atomics
	for _, m := range []struct {
		mr     **uverbs.MR
		size   int
		access verbs.Access
	}{{&p.MR, room + 8, access}, {&p.local, 2*room + 8, verbs.AccessLocalWrite}, {&p.in, depth * message, verbs.AccessLocalWrite}, {&p.out, depth * message, 0}} {
		if *m.mr, err = e.AllocMR(m.size, m.access); err != nil {
			return err
		}
	}
	for i := range depth {
		if err := p.expect(i); err != nil {
			return err
		}
	}
	hello := binary.BigEndian.AppendUint64(nil, uint64(p.mine))
	hello = binary.BigEndian.AppendUint64(hello, p.MR.Addr())
	return e.Announce(binary.BigEndian.AppendUint32(hello, p.MR.RKey()))
}

// greeted takes what the peer has announced.
func (p *Endpoint) greeted() {
	p.Addr, p.RKey = binary.BigEndian.Uint64(p.PrivateData[8:]), binary.BigEndian.Uint32(p.PrivateData[16:])
}

func (p *Endpoint) expect(slot int) error {
	_, err := p.QP.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{p.in.SGE(slot*message, message)}})
	return err
}

// post posts requests.
func (p *Endpoint) post(wrs ...verbs.SendWR) error {
	for i := range wrs {
		wrs[i].ID, wrs[i].RKey = p.posted+uint64(i), p.RKey
		wrs[i].Flags |= verbs.SendSignaled
	}
	n, err := p.QP.PostSend(wrs...)
	p.posted += uint64(n)
	if err != nil {
		return because(fmt.Errorf("%v: %w", wrs[0].Opcode, err), p.Endpoint)
	}
	return nil
}

// drain waits until no more than some requests are under way, which complete in the
// order that they were posted in.
func (p *Endpoint) drain(ctx context.Context, most uint64) error {
	for p.posted-p.done > most {
		n, err := p.SendCQ.PollWait(ctx, p.sendWCs[:])
		if err != nil {
			late := p.SendCQ.Poll(p.sendWCs[:]) // if there are any, the event was late
			return fmt.Errorf("await request %d of %d: %w, with %d completions", p.done, p.posted, err, late)
		}
		for i := range p.sendWCs[:n] {
			wc := &p.sendWCs[i]
			if err := cm.SendError(wc); err != nil {
				return because(fmt.Errorf("request %d: %w", p.done, err), p.Endpoint)
			}
			if wc.ID != p.done {
				return fmt.Errorf("request %d completed, want %d", wc.ID, p.done)
			}
			p.done++
		}
	}
	return nil
}

// all posts requests and waits for them.
func (p *Endpoint) all(ctx context.Context, wrs ...verbs.SendWR) error {
	if err := p.post(wrs...); err != nil {
		return err
	}
	return p.drain(ctx, 0)
}

// say sends a message that is not made of noise.
func (p *Endpoint) say(ctx context.Context, b []byte) error {
	if err := p.drain(ctx, depth-1); err != nil {
		return err
	}
	p.sent++
	return p.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: b})
}

// send sends the next message, of n bytes, from memory whose last message has gone.
func (p *Endpoint) send(ctx context.Context, n int) error {
	if err := p.drain(ctx, depth-1); err != nil {
		return err
	}
	off := int(p.sent%depth) * message
	p.mine.Fill(p.out.Bytes()[off:off+n], p.sent)
	wr := verbs.SendWR{Opcode: verbs.OpSend}
	if n > 0 {
		wr.SGL = []verbs.SGE{p.out.SGE(off, n)}
	}
	p.sent++
	return p.post(wr)
}

// receive takes the next message.
func (p *Endpoint) receive(ctx context.Context) ([]byte, error) {
	if len(p.arrived) == 0 {
		n, err := p.RecvCQ.PollWait(ctx, p.recvWCs[:])
		if err != nil {
			return nil, fmt.Errorf("await message %d: %w", p.came, err)
		}
		p.arrived = p.recvWCs[:n]
	}
	wc := &p.arrived[0]
	p.arrived = p.arrived[1:]
	if err := wc.Err(); err != nil {
		return nil, because(fmt.Errorf("receive message %d: %w", p.came, err), p.Endpoint)
	}
	slot := int(p.came % depth)
	if wc.ID != uint64(slot) {
		return nil, fmt.Errorf("%w: message %d came to slot %d", ErrData, p.came, wc.ID)
	}
	b := bytes.Clone(p.in.Bytes()[slot*message:][:wc.ByteLen])
	p.came++
	return b, p.expect(slot)
}

// take takes the next message, which must be one of n bytes.
func (p *Endpoint) take(ctx context.Context, n int) error {
	b, err := p.receive(ctx)
	if err != nil {
		return err
	}
	return p.theirs.Check("message", b, p.came-1, n)
}

func listenCM(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return Serve(ctx, l, l.Accept, func(ctx context.Context, req *cm.Request) error {
		p := &Endpoint{party: newParty(Key(binary.BigEndian.Uint64(req.PrivateData())).Answers())}
		e, err := req.Accept(ctx, cm.Options{Setup: p.setup})
		if err != nil {
			return err
		}
		defer e.Close()
		p.greeted()
		for {
			if err := p.answer(ctx); err != nil {
				return unlessEnded(ctx, e, err)
			}
		}
	}, report, nil), nil
}

// answer does the server's part of a round.
func (p *Endpoint) answer(ctx context.Context) error {
	b, err := p.receive(ctx)
	if err != nil {
		return err
	}
	messages, err := p.do(b, p.came-1, p.MR.Bytes())
	if err != nil {
		return err
	}
	if err := p.say(ctx, b); err != nil {
		return err
	}
	for range messages {
		b, err := p.receive(ctx)
		if err == nil {
			err = p.theirs.Check("message", b, p.came-1, len(b))
		}
		if err == nil {
			err = p.send(ctx, len(b))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// DialCM is CM.Dial with more options.
func DialCM(ctx context.Context, addr string, more func(*cm.Options)) (*Endpoint, error) {
	p := &Endpoint{party: newParty(Key(rand.Uint64()))}
	opt := cm.Options{Setup: p.setup}
	more(&opt)
	if _, err := (&cm.Dialer{ResolveTimeout: 30 * time.Second, Options: opt}).Dial(ctx, addr); err != nil {
		return nil, err
	}
	p.greeted()
	return p, nil
}

// Round writes to the peer's memory, reads that back, and reads what the peer has
// answered there; exchanges messages; and counts.
func (p *Endpoint) Round(ctx context.Context, n int) error {
	n = min(max(n, 1), room)
	off, seq := p.somewhere(p.PD.Context().Driver() == "siw", n), p.sent
	at := p.Addr + uint64(off)
	back := p.local.Bytes()[room:][:n]
	p.mine.Fill(p.local.Bytes()[:n], seq)
	clear(back)
	// A byte more proves that rxe has done all of a READ, see verbs.OpRDMARead.
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(0, n)}}
	read := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(room, n)}}
	proof := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(room, 1)}}
	if err := p.all(ctx, write, read, proof); err != nil {
		return fmt.Errorf("write and read back: %w", err)
	}
	if err := p.mine.Check("memory, read back,", back, seq, n); err != nil {
		return err
	}
	sizes := p.sizes(2*window, min(n, message))
	t := task{Off: uint32(off), N: uint32(n), Messages: uint32(len(sizes))}.bytes()
	if err := p.say(ctx, t); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if b, err := p.receive(ctx); err != nil {
		return fmt.Errorf("answer: %w", err)
	} else if !bytes.Equal(b, t) {
		return fmt.Errorf("%w: answer % x to % x", ErrData, b, t)
	}
	if err := p.all(ctx, read, proof); err != nil {
		return fmt.Errorf("read: %w", err)
	}
	if err := p.theirs.Check("memory", back, seq, n); err != nil {
		return err
	}
	for got, sent := 0, 0; got < len(sizes); got++ {
		for ; sent < len(sizes) && sent-got < window; sent++ {
			if err := p.send(ctx, sizes[sent]); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		if err := p.take(ctx, sizes[got]); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
	}
	if err := p.drain(ctx, 0); err != nil || !p.atomics {
		return err
	}
	delta, swap := p.rand.Uint64(), p.rand.Uint64()
	for _, a := range []struct {
		wr    verbs.SendWR
		after uint64
	}{
		{verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: delta}, p.counter + delta},
		{verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: p.counter + delta, Swap: swap}, swap},
		{verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: swap + 1, Swap: delta}, swap}, // is not equal
	} {
		a.wr.RemoteAddr, a.wr.SGL = p.Addr+room, []verbs.SGE{p.local.SGE(2*room, 8)}
		if err := p.all(ctx, a.wr); err != nil {
			return err
		}
		if was := binary.NativeEndian.Uint64(p.local.Bytes()[2*room:]); was != p.counter {
			return fmt.Errorf("%w: %v found %#x, want %#x", ErrData, a.wr.Opcode, was, p.counter)
		}
		p.counter = a.after
	}
	return nil
}

// Poke writes nothing to the peer's memory.
func (p *Endpoint) Poke() {
	p.QP.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: p.Addr, RKey: p.RKey})
}

// Shutdown does nothing.
func (p *Endpoint) Shutdown(context.Context) error { return nil }
