// Command erdma measures what posting and polling cost with provider/erdma, on an adapter that is not
// there. Its counterpart, c/erdma.c on liberdma, does the same and prints the same.
//
//	erdma [-single]
//
// The queues of erdma are memory of the process, and its doorbell is a store to a page. Here that
// page is memory too, which nobody reads, and the program writes the completions itself, while the
// clock does not run. So posts and polls do all that they do on an adapter, at the processor's own
// speed. An adapter's page is uncached, to which stores take longer: equally long for both sides, as
// they make the same.
//
// With -single the queues have no locks: SingleThreaded. liberdma always has them.
//
// For each line of the standard input the program measures once. Figures are medians over the
// rounds, in ns per request, per completion or, of an empty CQ, per call. "send" is a SEND of 8
// bytes inline, "write" is of 64 bytes, and a READ would be the same; "write_and_poll" posts a batch of
// WRITEs and polls its completions.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"log"
	"os"
	"runtime/debug"
	"slices"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/lab/tsc"
	"github.com/goverbs/verbs/tests/bench/deaf"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/tests/bench/ticks"
	"github.com/goverbs/verbs/uverbs"
)

const (
	work   = 960 // requests of a figure
	depth  = 1024
	rounds = 24
	size   = 64 // bytes of a message
	most   = 16 // the largest batch
)

func main() {
	log.SetFlags(0)
	single := len(os.Args) == 2 && os.Args[1] == "-single"
	if len(os.Args) > 1 && !single {
		log.Fatal("usage: erdma [-single]")
	}
	if err := run(single); err != nil {
		log.Fatal("erdma: ", err)
	}
}

func run(single bool) error {
	b, err := open(single)
	if err != nil {
		return err
	}
	debug.SetGCPercent(-1)
	return self.Again(b.measure)
}

// kind is a kind of send request.
type kind struct {
	name   string
	opcode uint8 // in its CQE
	units  int   // that it takes
	wrs    []verbs.SendWR
}

type bench struct {
	dev            *deaf.Erdma
	qp             *uverbs.QP
	sendCQ, recvCQ *uverbs.CQ
	kinds          [2]kind
	recvs          []verbs.RecvWR
	sent, received uint16 // units, and receives
	wcs            [most]verbs.WC

	ticks ticks.Meter
}

func open(single bool) (*bench, error) {
	dev, ctx, err := deaf.OpenErdma("erdma_0")
	if err != nil {
		return nil, err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	b := &bench{dev: dev, ticks: ticks.Meter{Work: work}}
	for _, cq := range []**uverbs.CQ{&b.sendCQ, &b.recvCQ} {
		if *cq, err = ctx.CreateCQ(uverbs.CQOptions{Depth: depth, SingleThreaded: single}); err != nil {
			return nil, err
		}
	}
	b.qp, err = pd.CreateQP(uverbs.QPOptions{
		SendCQ: b.sendCQ, RecvCQ: b.recvCQ, SingleThreaded: single,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8},
	})
	if err != nil {
		return nil, err
	}
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		if err := b.qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState); err != nil {
			return nil, err
		}
	}
	data := make([]byte, size)
	sge := verbs.SGE{Addr: 1 << 20, Length: size, LKey: 5}
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{sge}, RemoteAddr: 1 << 20, RKey: 6}
	b.kinds = [2]kind{
		{"send", deaf.ErdmaSend, 1, requests(verbs.SendWR{Opcode: verbs.OpSend, Inline: data[:8]})},
		{"write", deaf.ErdmaWrite, 2, requests(write)},
	}
	for i := range most {
		b.recvs = append(b.recvs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{sge}})
	}
	return b, nil
}

// requests returns a batch of requests like wr.
func requests(wr verbs.SendWR) []verbs.SendWR {
	wr.Flags = verbs.SendSignaled
	wrs := slices.Repeat([]verbs.SendWR{wr}, most)
	for i := range wrs {
		wrs[i].ID, wrs[i].SGL = uint64(i), slices.Clone(wr.SGL)
	}
	return wrs
}

func (b *bench) measure(out *bufio.Writer) error {
	allocs, err := b.ticks.Measure(rounds, b.round)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "units %d\nallocs %d\n", b.dev.Units, allocs)
	return b.ticks.Print(out, 12)
}

func (b *bench) round(int) error {
	send, recv := b.dev.CQs[0], b.dev.CQs[1]
	for i := range b.kinds {
		k := &b.kinds[i]
		for _, n := range []int{1, most} {
			start := tsc.Read()
			err := b.post(k.wrs[:n])
			b.ticks.Add(k.name, n, start)
			if err != nil {
				return err
			}
			send.Complete(work, false, k.opcode, b.sent, k.units, size)
			b.sent += uint16(work * k.units)
			start = tsc.Read()
			err = b.poll(b.sendCQ, n)
			if err != nil {
				return err
			}
			if k.opcode == deaf.ErdmaWrite {
				b.ticks.Add("poll", n, start)
			}
		}
	}
	for _, n := range []int{1, most} {
		start := tsc.Read()
		err := b.postRecv(b.recvs[:n])
		b.ticks.Add("post_recv", n, start)
		if err != nil {
			return err
		}
		recv.Complete(work, true, deaf.ErdmaRecv, b.received, 1, size)
		b.received += work
		start = tsc.Read()
		err = b.poll(b.recvCQ, n)
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
	write := &b.kinds[1]
	send.Complete(work, false, write.opcode, b.sent, write.units, size)
	b.sent += uint16(work * write.units)
	start = tsc.Read()
	err := b.writeAndPoll(write.wrs[:len(b.wcs)])
	b.ticks.Add("write_and_poll", len(b.wcs), start)
	return err
}

// post posts requests in batches like wrs.
func (b *bench) post(wrs []verbs.SendWR) error {
	qp := b.qp
	for range work / len(wrs) {
		if _, err := qp.PostSend(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) postRecv(wrs []verbs.RecvWR) error {
	qp := b.qp
	for range work / len(wrs) {
		if _, err := qp.PostRecv(wrs...); err != nil {
			return err
		}
	}
	return nil
}

// poll polls as many completions, n at a time.
func (b *bench) poll(cq *uverbs.CQ, n int) error {
	wcs := b.wcs[:n]
	for range work / n {
		if got := cq.Poll(wcs); got != n || wcs[n-1].Status != verbs.WCSuccess {
			return fmt.Errorf("polled %d of %d: %w", got, n, cmp.Or(wcs[n-1].Err(), errors.New("no error")))
		}
	}
	return nil
}

func (b *bench) pollEmpty() (n int) {
	for range work {
		n += b.recvCQ.Poll(b.wcs[:1])
	}
	return n
}

func (b *bench) writeAndPoll(wrs []verbs.SendWR) error {
	for range work / len(wrs) {
		if _, err := b.qp.PostSend(wrs...); err != nil {
			return err
		}
		if n := b.sendCQ.Poll(b.wcs[:]); n != len(wrs) || b.wcs[0].Status != verbs.WCSuccess {
			return fmt.Errorf("polled %d of %d: %w", n, len(wrs), cmp.Or(b.wcs[0].Err(), errors.New("no error")))
		}
	}
	return nil
}
