package soak

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
	"github.com/goverbs/verbs/uverbs"
)

const (
	most   = 64 << 10 // bytes of a message of the layers uverbs and conn
	window = 4        // messages that have no answer yet
	depth  = 2 * window
)

var verbsCap = verbs.QPCap{MaxSendWR: 32, MaxRecvWR: depth, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInline: 64}

// verbsEnd is one end of a connection, with memory for its messages.
type verbsEnd struct {
	*cm.Endpoint
	in, out    *uverbs.MR
	in0, sent  uint64 // messages that came, and that were sent
	done       uint64 // sends that have completed
	mine, your key
	wcs        [depth]verbs.WC
}

func newVerbsEnd(e *cm.Endpoint, mine key) (v *verbsEnd, err error) {
	v = &verbsEnd{Endpoint: e, mine: mine, your: mine.answers()}
	if v.in, err = e.AllocMR(depth*most, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if v.out, err = e.AllocMR(depth*most, 0); err != nil {
		return nil, err
	}
	for i := range depth {
		if err := v.receive(i); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *verbsEnd) receive(slot int) error {
	_, err := v.QP.PostRecv(verbs.RecvWR{ID: uint64(slot), SGL: []verbs.SGE{v.in.SGE(slot*most, most)}})
	return err
}

// send sends the next message, from memory whose last message has gone.
func (v *verbsEnd) send(ctx context.Context) (n int, err error) {
	for v.done+depth <= v.sent {
		if err := v.completed(ctx); err != nil {
			return 0, err
		}
	}
	off := int(v.sent%depth) * most
	n = len(v.mine.message(v.sent, most, v.out.Bytes()[off:off+most]))
	wr := verbs.SendWR{ID: v.sent, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
	if n > 0 {
		wr.SGL = []verbs.SGE{v.out.SGE(off, n)}
	}
	if _, err := v.QP.PostSend(wr); err != nil {
		return 0, fmt.Errorf("send message %d: %w", v.sent, err)
	}
	v.sent++
	return n, nil
}

// patience is how long a request that has all that it needs may take.
const patience = time.Minute

// sends waits for send requests to complete. If that takes too long it says
// whether the device or the news of it was late.
func (v *verbsEnd) sends(ctx context.Context) (int, error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	n, err := v.SendCQ.PollWait(limited, v.wcs[:])
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		late := v.SendCQ.Poll(v.wcs[:])
		attr, qerr := v.QP.Query()
		return 0, fmt.Errorf("%w for %v; then there were %d completions; QP %d: %+v (%v), err %v", err, patience, late, v.QP.Num(), attr, qerr, v.Err())
	}
	return n, err
}

// completed waits for sends to complete, in the order they were sent in.
func (v *verbsEnd) completed(ctx context.Context) error {
	n, err := v.sends(ctx)
	if err != nil {
		return fmt.Errorf("await message %d to be sent: %w", v.done, err)
	}
	for i := range v.wcs[:n] {
		if err := v.wcs[i].Err(); err != nil {
			return fmt.Errorf("send message %d: %w", v.done, err)
		}
		if v.wcs[i].ID != v.done {
			return fmt.Errorf("send %d completed in place of %d", v.wcs[i].ID, v.done)
		}
		v.done++
	}
	return nil
}

// came checks messages that came, says how many bytes they have, and posts
// their receives anew.
func (v *verbsEnd) came(ctx context.Context) (messages, total int, err error) {
	n, err := v.RecvCQ.PollWait(ctx, v.wcs[:])
	if err != nil {
		return 0, 0, fmt.Errorf("await message %d: %w", v.in0, err)
	}
	for i := range v.wcs[:n] {
		wc := &v.wcs[i]
		if err := wc.Err(); err != nil {
			return 0, 0, fmt.Errorf("receive message %d: %w", v.in0, err)
		}
		slot := int(wc.ID)
		if slot != int(v.in0%depth) {
			return 0, 0, fmt.Errorf("message %d came to slot %d", v.in0, slot)
		}
		if err := v.your.check(v.in0, most, v.in.Bytes()[slot*most:][:wc.ByteLen]); err != nil {
			return 0, 0, err
		}
		total += int(wc.ByteLen)
		v.in0++
		if err := v.receive(slot); err != nil {
			return 0, 0, err
		}
	}
	return n, total, nil
}

// ended says whether an error is that the peer has closed. siw fails what it was
// sending then, and flushes the rest.
func ended(ctx context.Context, e *cm.Endpoint, err error) bool {
	if !errors.Is(err, verbs.WCFlushErr) && !errors.Is(err, verbs.WCLocQPOpErr) && !errors.Is(err, verbs.ErrState) && !errors.Is(err, verbs.ErrDisconnected) {
		return false
	}
	select {
	case <-e.Done(): // flushes may be seen before
	case <-ctx.Done():
	}
	return errors.Is(e.Err(), verbs.ErrDisconnected)
}

// serveVerbs answers messages with messages, and offers memory.
func serveVerbs(s *side) (service, error) {
	return serveCM(s, "uverbs", func(ctx context.Context, req *cm.Request) error {
		mine := key(binary.BigEndian.Uint64(req.PrivateData())).answers()
		var v *verbsEnd
		e, err := req.Accept(ctx, cm.Options{Cap: verbsCap, Setup: func(e *cm.Endpoint) (err error) {
			if v, err = newVerbsEnd(e, mine); err != nil {
				return err
			}
			access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
			if s.atomics() {
				access |= verbs.AccessRemoteAtomic
			}
			offered, err := e.AllocMR(most+8, access)
			if err != nil {
				return err
			}
			return e.Announce(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, offered.Addr()), offered.RKey()))
		}})
		if err != nil {
			return err
		}
		defer e.Close()
		for {
			n, _, err := v.came(ctx)
			for range n {
				if err == nil {
					_, err = v.send(ctx)
				}
			}
			if err != nil {
				if ended(ctx, e, err) {
					return nil
				}
				return err
			}
		}
	})
}

// serveCM hands requests to a handler each.
func serveCM(s *side, layer string, handle func(context.Context, *cm.Request) error) (service, error) {
	l, err := cm.Listen(s.ctx, s.addr()+":0")
	if err != nil {
		return service{}, err
	}
	listen(s, layer, func() (*cm.Request, error) { return l.Accept(s.ctx) }, handle)
	return service{l.Addr().String(), l.Close, nil}, nil
}

func dialVerbs(s *side, addr string, n *count) (client, error) {
	life := func(ctx context.Context, r *rand.Rand) error {
		mine := key(r.Uint64())
		c := verbsClient{s: s, count: n}
		d := cm.Dialer{ResolveTimeout: 30 * time.Second, Options: cm.Options{
			Cap: verbsCap, PrivateData: binary.BigEndian.AppendUint64(nil, uint64(mine)),
			Setup: func(e *cm.Endpoint) (err error) {
				if c.verbsEnd, err = newVerbsEnd(e, mine); err != nil {
					return err
				}
				c.local, err = e.AllocMR(2*most+8, verbs.AccessLocalWrite)
				return err
			}}}
		e, err := d.Dial(ctx, addr)
		if err != nil {
			return err
		}
		defer e.Close()
		c.addr, c.rkey = binary.BigEndian.Uint64(e.PrivateData), binary.BigEndian.Uint32(e.PrivateData[8:])
		for steps := 5 + r.IntN(40); steps > 0 && !s.stopping(); steps-- {
			switch kind := r.IntN(4); {
			case kind == 0 && s.atomics():
				err = c.atomics(ctx, r)
			case kind == 1:
				err = c.writeRead(ctx, r)
			default:
				err = c.exchange(ctx, uint64(1+r.IntN(20)))
			}
			if err != nil {
				return fmt.Errorf("key %#x: %w", mine, err)
			}
		}
		return nil
	}
	return client{life, func() error { return nil }}, nil
}

type verbsClient struct {
	*verbsEnd
	s     *side
	count *count
	local *uverbs.MR // what is written, what is read, and the result of an atomic
	addr  uint64     // the peer's memory, after which there is a counter
	rkey  uint32

	counter uint64 // what it must be
	writes  uint64
}

// exchange sends n messages and has their answers.
func (c *verbsClient) exchange(ctx context.Context, n uint64) error {
	last := c.sent + n
	for c.in0 < last {
		for c.sent < last && c.sent-c.in0 < window {
			size, err := c.send(ctx)
			if err != nil {
				return err
			}
			c.count.add(size)
		}
		_, total, err := c.came(ctx)
		if err != nil {
			return err
		}
		c.count.bytes.Add(uint64(total))
	}
	return c.drain(ctx)
}

// drain waits until nothing is under way.
func (c *verbsClient) drain(ctx context.Context) error {
	for c.done < c.sent {
		if err := c.completed(ctx); err != nil {
			return err
		}
	}
	return nil
}

// post posts requests and waits for them. They count as sends.
func (c *verbsClient) post(ctx context.Context, wrs ...verbs.SendWR) error {
	for i := range wrs {
		wrs[i].ID, wrs[i].Flags = uint64(i), verbs.SendSignaled|verbs.SendFence
		wrs[i].RKey = c.rkey
	}
	if _, err := c.QP.PostSend(wrs...); err != nil {
		return fmt.Errorf("%v: %w", wrs[0].Opcode, err)
	}
	for next := 0; next < len(wrs); {
		n, err := c.sends(ctx)
		if err != nil {
			return fmt.Errorf("await %v: %w", wrs[next].Opcode, err)
		}
		for i := range c.wcs[:n] {
			if err := c.wcs[i].Err(); err != nil {
				return fmt.Errorf("%v: %w", wrs[next].Opcode, err)
			}
			if c.wcs[i].ID != uint64(next) {
				return fmt.Errorf("request %d completed in place of %d", c.wcs[i].ID, next)
			}
			next++
		}
	}
	return nil
}

// writeRead writes something somewhere and reads it back.
func (c *verbsClient) writeRead(ctx context.Context, r *rand.Rand) error {
	b := c.mine.message(1<<32+c.writes, most, c.local.Bytes()[:most])
	n := len(b)
	if n == 0 {
		n = 1
	}
	off := c.s.somewhere(r, n)
	back := c.local.Bytes()[most : most+n]
	for i := range back {
		back[i] = ^b[:n][i]
	}
	c.writes++
	err := c.post(ctx,
		verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: c.addr + uint64(off), SGL: []verbs.SGE{c.local.SGE(0, n)}},
		verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: c.addr + uint64(off), SGL: []verbs.SGE{c.local.SGE(most, n)}})
	if err != nil {
		return err
	}
	if !bytes.Equal(b[:n], back) {
		return fmt.Errorf("write %d at offset %d of the peer's memory, read back: %w", c.writes-1, off, differ(c.writes-1, c.mine, 0, back, b[:n]))
	}
	c.count.add(2 * n)
	return nil
}

// atomics count in the peer's memory.
func (c *verbsClient) atomics(ctx context.Context, r *rand.Rand) error {
	result := c.local.Bytes()[2*most:]
	at, sgl := c.addr+most, []verbs.SGE{c.local.SGE(2*most, 8)}
	do := func(wr verbs.SendWR, after uint64) error {
		wr.RemoteAddr, wr.SGL = at, sgl
		if err := c.post(ctx, wr); err != nil {
			return err
		}
		if was := binary.NativeEndian.Uint64(result); was != c.counter {
			return fmt.Errorf("%v found %#x, not %#x", wr.Opcode, was, c.counter)
		}
		c.counter = after
		c.count.add(8)
		return nil
	}
	delta, swap := r.Uint64(), r.Uint64()
	if err := do(verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: delta}, c.counter+delta); err != nil {
		return err
	}
	if err := do(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: c.counter, Swap: swap}, swap); err != nil {
		return err
	}
	return do(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: c.counter + 1, Swap: delta}, c.counter) // is not equal
}
