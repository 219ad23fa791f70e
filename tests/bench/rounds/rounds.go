// Package rounds measures what posting and polling cost on a device without an adapter: of package deaf.
// Its counterpart in C is c/rounds.h.
//
// The queues are memory of the process, and the doorbell is a store to a page. Here that page is memory
// too, which nobody reads, and the program writes the completions itself, while the clock does not
// run. So posts and polls do all that they do on an adapter, at the processor's own speed. Stores to
// an adapter's page take longer: equally long for both sides, as they make the same.
//
// For each line of the standard input a program measures once. Figures are medians over the rounds, in ns
// per request, per completion or, of an empty CQ, per call. "send" is a SEND of 8 bytes inline, "write"
// is of 64 bytes, and a READ would be the same; "write_and_poll" posts a batch of WRITEs and polls its
// completions.
package rounds

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/tsc"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/tests/bench/ticks"
	"github.com/goverbs/verbs/uverbs"
)

const (
	Work   = 960 // requests of a figure
	Depth  = 1024
	Size   = 64 // bytes of a message
	most   = 16 // the largest batch
	rounds = 24
)

// Kind is a kind of send request.
type Kind struct {
	Name     string
	Polled   string // name of the figure of polling its completions, if they are measured
	Requests []verbs.SendWR
	Complete func() // writes the completions of Work requests
}

// Bench is a QP, and what is measured.
type Bench struct {
	QP             *uverbs.QP
	SendCQ, RecvCQ *uverbs.CQ
	Kinds          []Kind
	Both           *Kind  // whose requests are posted and polled, or nil
	CompleteRecvs  func() // writes the completions of Work receives; nil if none are posted
	Unit           string // of the send queue's size, as the program prints it: "blocks"
	Units          func() int
	Figures        int

	recvs []verbs.RecvWR
	wcs   [most]verbs.WC
	ticks ticks.Meter
}

// SGE is where each message is.
var SGE = verbs.SGE{Addr: 1 << 20, Length: Size, LKey: 5}

// Requests returns a batch of requests like wr.
func Requests(wr verbs.SendWR) []verbs.SendWR {
	wr.Flags = verbs.SendSignaled
	wrs := slices.Repeat([]verbs.SendWR{wr}, most)
	for i := range wrs {
		wrs[i].ID, wrs[i].SGL = uint64(i), slices.Clone(wr.SGL)
	}
	return wrs
}

// Open makes the QP with its CQs, in RTS.
func (b *Bench) Open(ctx *uverbs.Context, pd *uverbs.PD, depth int, opt uverbs.QPOptions) error {
	var err error
	for _, cq := range []**uverbs.CQ{&b.SendCQ, &b.RecvCQ} {
		if *cq, err = ctx.CreateCQ(uverbs.CQOptions{Depth: depth, SingleThreaded: opt.SingleThreaded}); err != nil {
			return err
		}
	}
	opt.SendCQ, opt.RecvCQ = b.SendCQ, b.RecvCQ
	if b.QP, err = pd.CreateQP(opt); err != nil {
		return err
	}
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		if err := b.QP.Modify(verbs.QPAttr{State: s}, verbs.MaskState); err != nil {
			return err
		}
	}
	return nil
}

// Run measures as often as the standard input has lines.
func (b *Bench) Run() error {
	b.ticks.Work = Work
	for i := range most {
		b.recvs = append(b.recvs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{SGE}})
	}
	debug.SetGCPercent(-1)
	return self.Again(b.measure)
}

func (b *Bench) measure(out *bufio.Writer) error {
	allocs, err := b.ticks.Measure(rounds, b.round)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s %d\nallocs %d\n", b.Unit, b.Units(), allocs)
	return b.ticks.Print(out, b.Figures)
}

func (b *Bench) round(int) error {
	for i := range b.Kinds {
		k := &b.Kinds[i]
		for _, n := range []int{1, most} {
			start := tsc.Read()
			err := b.post(k.Requests[:n])
			b.ticks.Add(k.Name, n, start)
			if err != nil {
				return err
			}
			k.Complete()
			start = tsc.Read()
			err = b.poll(b.SendCQ, n)
			if err != nil {
				return err
			}
			if k.Polled != "" {
				b.ticks.Add(k.Polled, n, start)
			}
		}
	}
	if b.CompleteRecvs == nil {
		return nil
	}
	for _, n := range []int{1, most} {
		start := tsc.Read()
		err := b.postRecv(b.recvs[:n])
		b.ticks.Add("post_recv", n, start)
		if err != nil {
			return err
		}
		b.CompleteRecvs()
		start = tsc.Read()
		err = b.poll(b.RecvCQ, n)
		b.ticks.Add("poll_recv", n, start)
		if err != nil {
			return err
		}
	}
	start := tsc.Read()
	got := b.pollEmpty()
	b.ticks.Add("poll_empty", 1, start)
	if got != 0 {
		return errors.New("more completions than requests")
	}

	// The completions are there before the requests, as if the adapter took no time.
	b.Both.Complete()
	start = tsc.Read()
	err := b.writeAndPoll(b.Both.Requests[:len(b.wcs)])
	b.ticks.Add("write_and_poll", len(b.wcs), start)
	return err
}

// post posts requests in batches like wrs.
func (b *Bench) post(wrs []verbs.SendWR) error {
	qp := b.QP
	for range Work / len(wrs) {
		if _, err := qp.PostSend(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bench) postRecv(wrs []verbs.RecvWR) error {
	qp := b.QP
	for range Work / len(wrs) {
		if _, err := qp.PostRecv(wrs...); err != nil {
			return err
		}
	}
	return nil
}

// poll polls as many completions, n at a time.
func (b *Bench) poll(cq *uverbs.CQ, n int) error {
	wcs := b.wcs[:n]
	for range Work / n {
		if got := cq.Poll(wcs); got != n || wcs[n-1].Status != verbs.WCSuccess {
			return fmt.Errorf("polled %d of %d: %w", got, n, cmp.Or(wcs[n-1].Err(), errors.New("no error")))
		}
	}
	return nil
}

func (b *Bench) pollEmpty() (n int) {
	for range Work {
		n += b.RecvCQ.Poll(b.wcs[:1])
	}
	return n
}

func (b *Bench) writeAndPoll(wrs []verbs.SendWR) error {
	for range Work / len(wrs) {
		if _, err := b.QP.PostSend(wrs...); err != nil {
			return err
		}
		if n := b.SendCQ.Poll(b.wcs[:]); n != len(wrs) || b.wcs[0].Status != verbs.WCSuccess {
			return fmt.Errorf("polled %d of %d: %w", n, len(wrs), cmp.Or(b.wcs[0].Err(), errors.New("no error")))
		}
	}
	return nil
}
