package endpoint

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

// PostRecv posts receives to the SRQ, if there is one, or else to the QP.
func (l *Local) PostRecv(wrs ...verbs.RecvWR) (int, error) {
	if l.SRQ != nil {
		return l.SRQ.PostRecv(wrs...)
	}
	return l.QP.PostRecv(wrs...)
}

// Wait polls until there is a completion. Its error is the completion's, if it has one.
func (l *Local) Wait(ctx context.Context, cq *uverbs.CQ) (verbs.WC, error) {
	var wc [1]verbs.WC
	for until := time.Now().Add(Limit); cq.Poll(wc[:]) == 0; {
		switch {
		case ctx.Err() != nil:
			return wc[0], context.Cause(ctx)
		case time.Now().After(until):
			return wc[0], fmt.Errorf("no completion within %v", Limit)
		}
		time.Sleep(10 * time.Microsecond)
	}
	l.WCs = append(l.WCs[max(0, len(l.WCs)-3):], wc[0])
	return wc[0], wc[0].Err()
}

// Do posts requests in one call, of which the last is signaled, and waits for its completion.
func (l *Local) Do(ctx context.Context, wrs ...verbs.SendWR) error {
	last := &wrs[len(wrs)-1]
	last.Flags |= verbs.SendSignaled
	if _, err := l.QP.PostSend(wrs...); err != nil {
		return err
	}
	wc, err := l.Wait(ctx, l.SendCQ)
	if err == nil && wc.ID != last.ID {
		err = fmt.Errorf("completion of request %d, not %d", wc.ID, last.ID)
	}
	return err
}

// Request returns a request for the remote end's memory.
func (l *Local) Request(op verbs.Opcode, rkey uint32, sgl ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{Opcode: op, RemoteAddr: l.Remote.Addr, RKey: rkey, SGL: sgl}
}

// pattern calls f with each byte of the pieces of the MR, and what message seq has there.
func (l *Local) pattern(seq uint64, sgl []verbs.SGE, f func(at int, b *byte, want byte)) {
	r, at := rand.New(rand.NewPCG(seq, 0)), 0
	for _, s := range sgl {
		mem := l.MR.Bytes()[s.Addr-l.MR.Addr():][:s.Length]
		for i := range mem {
			f(at, &mem[i], byte(r.Uint32()))
			at++
		}
	}
}

// Fill writes message seq to pieces of the MR.
func (l *Local) Fill(seq uint64, sgl ...verbs.SGE) {
	l.pattern(seq, sgl, func(_ int, b *byte, want byte) { *b = want })
}

// Compare returns an error unless pieces of the MR have message seq.
func (l *Local) Compare(seq uint64, sgl ...verbs.SGE) error {
	bad, first := 0, 0
	l.pattern(seq, sgl, func(at int, b *byte, want byte) {
		if *b == want {
			return
		}
		if bad++; bad == 1 {
			first = at
		}
	})
	if bad > 0 {
		return fmt.Errorf("damaged data: %d bytes differ, the first at %d", bad, first)
	}
	return nil
}
