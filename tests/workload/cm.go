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

// CM uses packages cm and uverbs: it writes and reads the peer's memory, counts in it, and
// exchanges messages, several at a time.
var CM = &Layer{
	Name: "cm", Listen: listenCM,
	Dial: func(ctx context.Context, addr string) (Session, error) {
		return DialCM(ctx, addr, func(*cm.Options) {})
	},
	PeerGoneErrors: []error{verbs.WCRetryExcErr, verbs.WCFlushErr, verbs.WCLocQPOpErr, verbs.ErrDisconnected},
}

const (
	window = 4          // messages without an answer
	depth  = window + 1 // receives, and sends in flight
)

// Endpoint is an end of layer CM.
type Endpoint struct {
	*cm.Endpoint
	MR   *uverbs.MR // for the peer to use
	Addr uint64     // of the peer's memory
	RKey uint32

	simple
	side
	local            *uverbs.MR // data to write, data read, and the result of an atomic
	in, out          *uverbs.MR // of messages
	posted, done     uint64     // send requests
	arrived          []verbs.WC // not yet received
	recvWCs, sendWCs [depth]verbs.WC
	counter          uint64 // expected value of the peer's counter
}

func (p *Endpoint) setup(e *cm.Endpoint) (err error) {
	p.Endpoint = e
	access, atomics := remoteAccess(e.PD.Context())
	p.atomics = atomics
	for _, m := range []struct {
		mr     **uverbs.MR
		size   int
		access verbs.Access
	}{{&p.MR, memSize + 8, access}, {&p.local, 2*memSize + 8, verbs.AccessLocalWrite}, {&p.in, depth * message, verbs.AccessLocalWrite}, {&p.out, depth * message, 0}} {
		if *m.mr, err = e.AllocMR(m.size, m.access); err != nil {
			return err
		}
	}
	for i := range depth {
		if err := p.postRecv(i); err != nil {
			return err
		}
	}
	hello := binary.BigEndian.AppendUint64(nil, uint64(p.mine))
	hello = binary.BigEndian.AppendUint64(hello, p.MR.Addr())
	return e.Announce(binary.BigEndian.AppendUint32(hello, p.MR.RKey()))
}

// readHello reads the peer's announcement.
func (p *Endpoint) readHello() {
	p.Addr, p.RKey = binary.BigEndian.Uint64(p.PrivateData[8:]), binary.BigEndian.Uint32(p.PrivateData[16:])
}

func (p *Endpoint) postRecv(slot int) error {
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
		return withReason(fmt.Errorf("%v: %w", wrs[0].Opcode, err), p.Endpoint)
	}
	return nil
}

// drain waits until at most most requests are in flight. They must complete in the order in
// which they were posted.
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
				return withReason(fmt.Errorf("request %d: %w", p.done, err), p.Endpoint)
			}
			if wc.ID != p.done {
				return fmt.Errorf("request %d completed, want %d", wc.ID, p.done)
			}
			p.done++
		}
	}
	return nil
}

// postAndWait posts requests and waits for their completions.
func (p *Endpoint) postAndWait(ctx context.Context, wrs ...verbs.SendWR) error {
	if err := p.post(wrs...); err != nil {
		return err
	}
	return p.drain(ctx, 0)
}

// sendControl sends a message that does not consist of noise.
func (p *Endpoint) sendControl(ctx context.Context, b []byte) error {
	if err := p.drain(ctx, depth-1); err != nil {
		return err
	}
	p.sent++
	return p.post(verbs.SendWR{Opcode: verbs.OpSend, Inline: b})
}

// send sends the next message, of n bytes, from memory whose last message has been sent.
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

// receive returns the next message.
func (p *Endpoint) receive(ctx context.Context) ([]byte, error) {
	if len(p.arrived) == 0 {
		n, err := p.RecvCQ.PollWait(ctx, p.recvWCs[:])
		if err != nil {
			return nil, fmt.Errorf("await message %d: %w", p.received, err)
		}
		p.arrived = p.recvWCs[:n]
	}
	wc := &p.arrived[0]
	p.arrived = p.arrived[1:]
	if err := wc.Err(); err != nil {
		return nil, withReason(fmt.Errorf("receive message %d: %w", p.received, err), p.Endpoint)
	}
	slot := int(p.received % depth)
	if wc.ID != uint64(slot) {
		return nil, fmt.Errorf("%w: message %d came to slot %d", ErrData, p.received, wc.ID)
	}
	b := bytes.Clone(p.in.Bytes()[slot*message:][:wc.ByteLen])
	p.received++
	return b, p.postRecv(slot)
}

func listenCM(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return Serve(ctx, l, l.Accept, func(ctx context.Context, req *cm.Request) error {
		p := &Endpoint{side: newSide(Key(binary.BigEndian.Uint64(req.PrivateData())).Peer())}
		e, err := req.Accept(ctx, cm.Options{Setup: p.setup})
		if err != nil {
			return err
		}
		defer e.Close()
		p.readHello()
		for {
			if err := p.serveRound(ctx, p, p.MR.Bytes()); err != nil {
				return unlessPeerClosed(ctx, e, err)
			}
		}
	}, report, nil), nil
}

// DialCM does the same as CM.Dial, with more options.
func DialCM(ctx context.Context, addr string, more func(*cm.Options)) (*Endpoint, error) {
	p := &Endpoint{side: newSide(Key(rand.Uint64()))}
	opt := cm.Options{Setup: p.setup}
	more(&opt)
	if _, err := (&cm.Dialer{ResolveTimeout: 30 * time.Second, Options: opt}).Dial(ctx, addr); err != nil {
		return nil, err
	}
	p.readHello()
	return p, nil
}

// Round writes to the peer's memory, sometimes reads it back, and reads the peer's answer
// there; it exchanges messages, and counts.
func (p *Endpoint) Round(ctx context.Context, n int) error {
	n = p.length(p.PD.Context(), n)
	off, seq := p.randomOffset(n), p.sent
	at := p.Addr + uint64(off)
	back := p.local.Bytes()[memSize:][:n]
	p.mine.Fill(p.local.Bytes()[:n], seq)
	clear(back)
	// Reading some more bytes ensures that rxe has finished a READ, see verbs.OpRDMARead.
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(0, n)}}
	read := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(memSize, n)}}
	proof := verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: at, SGL: []verbs.SGE{p.local.SGE(memSize, min(n, 33))}}
	var err error
	if p.rand.IntN(2) == 0 {
		err = p.post(write) // it must arrive before the message that follows
	} else if err = p.postAndWait(ctx, write, read, proof); err == nil {
		err = p.mine.Check("memory, read back,", back, seq, n)
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	err = p.clientRound(ctx, p, task{Off: uint32(off), N: uint32(n)}, 2*window, window, func() ([]byte, error) {
		return back, p.postAndWait(ctx, read, proof)
	})
	if err == nil {
		err = p.drain(ctx, 0)
	}
	if err != nil {
		return err
	}
	atomic := func(wr verbs.SendWR) (uint64, error) {
		wr.RemoteAddr, wr.SGL = p.Addr+memSize, []verbs.SGE{p.local.SGE(2*memSize, 8)}
		err := p.postAndWait(ctx, wr)
		return binary.NativeEndian.Uint64(p.local.Bytes()[2*memSize:]), err
	}
	return p.checkAtomics(&p.counter, func(delta uint64) (uint64, error) {
		return atomic(verbs.SendWR{Opcode: verbs.OpFetchAdd, Args: &verbs.SendArgs{CompareAdd: delta}})
	}, func(old, value uint64) (uint64, error) {
		return atomic(verbs.SendWR{Opcode: verbs.OpCompareSwap, Args: &verbs.SendArgs{CompareAdd: old, Swap: value}})
	})
}

// Poke writes no bytes to the peer's memory.
func (p *Endpoint) Poke() {
	p.QP.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: p.Addr, RKey: p.RKey})
}
