package workload

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
	memSize = 256 << 10 // bytes of memory that a peer may use; a counter follows
	message = 64 << 10  // maximum bytes of a message
)

// side is the state of one side of a connection that several layers share.
type side struct {
	mine, theirs   Key
	rand           *rand.Rand
	sent, received uint64 // messages
	atomics        bool
}

func newSide(mine Key) side {
	return side{mine: mine, theirs: mine.Peer(), rand: rand.New(rand.NewPCG(uint64(mine), 0))}
}

// messenger is an end of either layer.
type messenger interface {
	sendControl(ctx context.Context, b []byte) error // sends a message that is not noise
	send(ctx context.Context, n int) error           // sends a message of noise
	receive(ctx context.Context) ([]byte, error)
}

// receiveChecked receives the next message, which must have n bytes unless n is negative.
func (p *side) receiveChecked(ctx context.Context, m messenger, n int) (int, error) {
	b, err := m.receive(ctx)
	if err != nil {
		return 0, err
	}
	if n < 0 {
		n = len(b)
	}
	return n, p.theirs.Check("message", b, p.received-1, n)
}

// task is the first message of a round, from the side that dialed: where it has written, and
// how many messages follow.
type task struct{ Region, Off, N, Messages uint32 }

// serveRound does the server's part of a round: it checks what the peer has written to regions,
// stores an answer there, which the peer reads, and answers messages.
func (p *side) serveRound(ctx context.Context, m messenger, regions ...[]byte) error {
	first, stop := idle(ctx)
	defer stop()
	b, err := m.receive(first)
	if err != nil {
		return unlessIdle(ctx, err)
	}
	var t task
	if n, err := binary.Decode(b, binary.BigEndian, &t); err != nil || n != len(b) || int(t.Region) >= len(regions) || t.Off+t.N > memSize {
		return fmt.Errorf("%w: task % x: %v", ErrData, b, err)
	}
	at, seq := regions[t.Region][t.Off:][:t.N], p.received-1
	if err := p.theirs.Check("memory", at, seq, len(at)); err != nil {
		return err
	}
	p.mine.Fill(at, seq)
	if err := m.sendControl(ctx, b); err != nil {
		return err
	}
	for range t.Messages {
		n, err := p.receiveChecked(ctx, m, -1)
		if err == nil {
			err = m.send(ctx, n)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clientRound does the dialing side's part of a round after it has written to memory as number
// p.sent: it sends the task, reads the server's answer there, and exchanges up to most
// messages, window of them at a time.
func (p *side) clientRound(ctx context.Context, m messenger, t task, most, window int, read func() ([]byte, error)) error {
	sizes, seq := p.sizes(most, min(int(t.N), message)), p.sent
	t.Messages = uint32(len(sizes))
	b, _ := binary.Append(nil, binary.BigEndian, t)
	if err := m.sendControl(ctx, b); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if back, err := m.receive(ctx); err != nil {
		return fmt.Errorf("answer: %w", err)
	} else if !bytes.Equal(back, b) {
		return fmt.Errorf("%w: answer % x to % x", ErrData, back, b)
	}
	back, err := read()
	if err == nil {
		err = p.theirs.Check("memory", back, seq, int(t.N))
	}
	if err != nil {
		return fmt.Errorf("read: %w", err)
	}
	for got, sent := 0, 0; got < len(sizes); got++ {
		for ; sent < len(sizes) && sent-got < window; sent++ {
			if err := m.send(ctx, sizes[sent]); err != nil {
				return fmt.Errorf("send: %w", err)
			}
		}
		if _, err := p.receiveChecked(ctx, m, sizes[got]); err != nil {
			return fmt.Errorf("echo: %w", err)
		}
	}
	return nil
}

// Idle is how long the servers of layers without a message for the end of a connection
// wait for the next round, or 0 for no limit. The datagram that reports the end may be lost, see
// cm.Endpoint.Close, and UD has none.
var Idle time.Duration

// errIdle is the end of a connection by Idle.
var errIdle = errors.New("nothing was received")

// idle returns a context for the wait for the next round.
func idle(ctx context.Context) (context.Context, context.CancelFunc) {
	if Idle == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, Idle)
}

// unlessIdle returns err, or errIdle if the wait for the next round has ended.
func unlessIdle(ctx context.Context, err error) error {
	if Idle != 0 && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return errIdle
	}
	return err
}

// checkAtomics changes and checks a counter, whose value must be want.
func (p *side) checkAtomics(want *uint64, add func(uint64) (uint64, error), swap func(old, value uint64) (uint64, error)) error {
	if !p.atomics {
		return nil
	}
	delta, value := p.rand.Uint64(), p.rand.Uint64()
	for _, op := range []struct {
		what  string
		do    func() (uint64, error)
		after uint64
	}{
		{"fetch and add", func() (uint64, error) { return add(delta) }, *want + delta},
		{"compare and swap", func() (uint64, error) { return swap(*want, value) }, value},
		{"compare with another and swap", func() (uint64, error) { return swap(value+1, delta) }, value},
	} {
		was, err := op.do()
		if err != nil {
			return fmt.Errorf("%s: %w", op.what, err)
		}
		if was != *want {
			return fmt.Errorf("%w: %s found %#x, want %#x", ErrData, op.what, was, *want)
		}
		*want = op.after
	}
	return nil
}

// sizes returns 1 to most sizes of messages. The first is n, the others are at most n and
// mostly much smaller.
func (p *side) sizes(most, n int) []int {
	all := []int{n}
	for range p.rand.IntN(most) {
		all = append(all, p.rand.IntN(n+1)>>p.rand.IntN(12))
	}
	return all
}

// length limits n, the bytes that a round writes and reads.
//
// siw breaks connections, and sends wrong bytes, when it answers READs of up to 32 bytes (siw_try_1seg, see
// docs/kernels.md). Data may be cut in four.
func (p *side) length(c *uverbs.Context, n int) int {
	least := 1
	if c.Driver() == "siw" {
		least = 4 * 33
	}
	return min(max(n, least), memSize)
}

// randomOffset returns an offset for n bytes of a peer's memory.
func (p *side) randomOffset(n int) int { return p.rand.IntN(memSize - n + 1) }

// remoteAccess returns the access rights of memory for the peer, with atomics if supported.
func remoteAccess(c *uverbs.Context) (a verbs.Access, atomics bool) {
	a = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	if atomics = c.Probe(uverbs.FeatureAtomics) == nil; atomics {
		a |= verbs.AccessRemoteAtomic
	}
	return a, atomics
}

// reasonTime bounds the wait for the end of a connection whose requests are flushed.
const reasonTime = 5 * time.Second

// withReason adds the reason why a connection ended to the error of a request that was
// flushed.
func withReason(err error, e *cm.Endpoint) error {
	if !errors.Is(err, verbs.WCFlushErr) {
		return err
	}
	select {
	case <-e.Done():
		return fmt.Errorf("%w: %w", e.Err(), err)
	case <-time.After(reasonTime):
		return err // only the queue pair has failed
	}
}

// unlessPeerClosed returns err, or nil if the reason is that the peer has closed: siw then
// fails the request that it was sending, and flushes the rest.
func unlessPeerClosed(ctx context.Context, e *cm.Endpoint, err error) error {
	if err == errIdle {
		return nil
	}
	if !errors.Is(err, verbs.WCFlushErr) && !errors.Is(err, verbs.WCLocQPOpErr) && !errors.Is(err, verbs.ErrState) && !errors.Is(err, verbs.ErrDisconnected) {
		return err
	}
	select {
	case <-e.Done(): // requests may be flushed before
	case <-ctx.Done():
	case <-time.After(reasonTime):
	}
	if errors.Is(e.Err(), verbs.ErrDisconnected) {
		return nil
	}
	return err
}
