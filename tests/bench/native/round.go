package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/tsc"
	"github.com/goverbs/verbs/uverbs"
)

// add adds a figure: the time since start, divided by the amount of work.
func (s *series) add(start uint64) { s.ticks = append(s.ticks, float64(tsc.Read()-start)/work) }

// round runs round i, which determines the sizes of the batches.
func (b *bench) round(i int) error {
	recv, send, poll := b.recv[i%len(b.recv)], b.send[i%len(b.send)], b.poll[i/2%len(b.poll)]
	if err := b.postRecvs(recv); err != nil {
		return err
	}
	if err := b.postSends(send); err != nil {
		return err
	}
	n, err := drain(b.client.SendCQ, b.wcs[:], work+1)
	if err != nil {
		return fmt.Errorf("sends: %w", err)
	}
	b.sends += n
	// Only polling shows whether all receives have completed: if they have not,
	// the round does not count for poll.
	time.Sleep(3 * time.Millisecond)
	n = b.pollRecvs(poll)
	rest, err := drain(b.server.RecvCQ, b.wcs[:], work+1-n)
	if err != nil {
		return fmt.Errorf("receives: %w", err)
	}
	n += rest
	start := tsc.Read()
	for range work {
		n += b.server.RecvCQ.Poll(b.wcs[:1])
	}
	b.empty.add(start)
	b.receives += n
	if n > work+1 {
		return errors.New("more completions than requests")
	}
	return nil
}

func (b *bench) postRecvs(s *series) error {
	wrs := b.recvWRs[:s.batch]
	start := tsc.Read()
	for i := 0; i < work; i += s.batch {
		if _, err := b.server.QP.PostRecv(wrs...); err != nil {
			return err
		}
	}
	s.add(start)
	_, err := b.server.QP.PostRecv(wrs[:1]...)
	return err
}

func (b *bench) postSends(s *series) error {
	mute()
	wrs := b.sendWRs[:s.batch]
	start := tsc.Read()
	for i := 0; i < work; i += s.batch {
		if _, err := b.client.QP.PostSend(wrs...); err != nil {
			return err
		}
	}
	s.add(start)
	if _, err := b.client.QP.PostSend(wrs[:1]...); err != nil {
		return err
	}
	return unmute()
}

// pollRecvs polls completions, and returns how many.
func (b *bench) pollRecvs(s *series) int {
	n, wcs := 0, b.wcs[:s.batch]
	start := tsc.Read()
	for n < work {
		got := b.server.RecvCQ.Poll(wcs)
		n += got
		if got < s.batch {
			return n
		}
	}
	s.add(start)
	return n
}

// drain waits for n completions, all successful, and returns how many it polled.
func drain(cq *uverbs.CQ, wcs []verbs.WC, n int) (all int, err error) {
	for deadline := time.Now().Add(10 * time.Second); n > 0; {
		got := cq.Poll(wcs[:min(n, len(wcs))])
		for i := range wcs[:got] {
			if err := wcs[i].Err(); err != nil {
				return all, err
			}
		}
		n -= got
		all += got
		if got == 0 {
			if time.Now().After(deadline) {
				return all, fmt.Errorf("%d are missing", n)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return all, nil
}
