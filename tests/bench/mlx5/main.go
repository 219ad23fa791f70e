// Command mlx5 measures what posting and polling cost with provider/mlx5, on an adapter that is not
// there. Its counterpart, c/mlx5.c on libmlx5, takes the same arguments, does the same and prints
// the same.
//
//	mlx5 [-single] [-dci]
//
// The queues of mlx5 are memory of the process, and its doorbell is a store to a page. Here that
// page is memory too, which nobody reads, and the program writes the completions itself, while the
// clock does not run. So posts and polls do all that they do on an adapter, at the processor's own
// speed. An adapter's page is mapped for write combining, to which stores take longer: equally long
// for both sides, as they make the same.
//
// With -single the queues have no locks: SingleThreaded, or MLX5_SINGLE_THREADED=1. With -dci the QP is
// an initiator of DC instead of an RC QP. Its requests take two blocks of the queue, and name their
// target.
//
// For each line of the standard input the program measures once. Figures are medians over the
// rounds, in ns per request, per completion or, of an empty CQ, per call. "send" is a SEND of 8
// bytes inline, "write" is of 64 bytes, and a READ would be the same; "write_and_poll" posts a batch of
// WRITEs and polls its completions. Names of a DCI's figures begin with "dci_", and say which requests
// have 8 bytes inline.
package main

import (
	"bufio"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"log"
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
	single := flag.Bool("single", false, "leave out locks")
	dci := flag.Bool("dci", false, "use an initiator of DC")
	flag.Parse()
	if err := run(*single, *dci); err != nil {
		log.Fatal("mlx5: ", err)
	}
}

func run(single, dci bool) error {
	b, err := open(single, dci)
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
	wrs    []verbs.SendWR
	polled string // name of the figure of polling its completions, if they are measured
}

type bench struct {
	dev            *deaf.Device
	qp             *uverbs.QP
	sendCQ, recvCQ *uverbs.CQ
	kinds          []kind
	recvs          []verbs.RecvWR
	blocks         uint16 // of a send request
	sent, received uint16 // blocks posted
	wcs            [most]verbs.WC

	ticks   ticks.Meter
	figures int
}

func open(single, dci bool) (*bench, error) {
	dev, ctx, err := deaf.Open("mlx5_0")
	if err != nil {
		return nil, err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return nil, err
	}
	b := &bench{dev: dev, blocks: 1, figures: 12, ticks: ticks.Meter{Work: work}}
	for _, cq := range []**uverbs.CQ{&b.sendCQ, &b.recvCQ} {
		if *cq, err = ctx.CreateCQ(uverbs.CQOptions{Depth: depth - 1, SingleThreaded: single}); err != nil {
			return nil, err
		}
	}
	opt := uverbs.QPOptions{
		SendCQ: b.sendCQ, RecvCQ: b.recvCQ, SingleThreaded: single,
		Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 200},
	}
	var to verbs.UDAddr
	if dci {
		ah, err := pd.CreateAH(verbs.AddressVector{Port: 1, DLID: 1})
		if err != nil {
			return nil, err
		}
		to = ah.To(7, 0)
		opt.Type, opt.DCKey, opt.Cap.MaxInline = verbs.DCI, 8, 8
	}
	// In libmlx5 each request has room for 4 blocks, as the longest here; a DCI's has for 2 without
	// windows.
	if b.qp, err = pd.CreateQP(opt); err != nil {
		return nil, err
	}
	for s := verbs.StateInit; s <= verbs.StateRTS; s++ {
		if err := b.qp.Modify(verbs.QPAttr{State: s}, verbs.MaskState); err != nil {
			return nil, err
		}
	}
	data := make([]byte, size)
	sge := verbs.SGE{Addr: 1 << 20, Length: size, LKey: 5}
	send := verbs.SendWR{Opcode: verbs.OpSend, To: to}
	write := verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: 1 << 20, RKey: 6, To: to}
	inline, list := data[:8], []verbs.SGE{sge}
	if dci {
		b.blocks, b.figures = 2, 10
		b.kinds = []kind{
			{"dci_send_inline", deaf.Send, requests(send, inline, nil), ""},
			{"dci_send", deaf.Send, requests(send, nil, list), ""},
			{"dci_write_inline", deaf.Write, requests(write, inline, nil), ""},
			{"dci_write", deaf.Write, requests(write, nil, list), "dci_poll"},
		}
		return b, nil
	}
	b.kinds = []kind{
		{"send", deaf.Send, requests(send, inline, nil), ""},
		{"write", deaf.Write, requests(write, nil, list), "poll"},
	}
	for i := range most {
		b.recvs = append(b.recvs, verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{sge}})
	}
	return b, nil
}

// requests returns a batch of requests like wr, with inline data or a list.
func requests(wr verbs.SendWR, inline []byte, list []verbs.SGE) []verbs.SendWR {
	wr.Flags, wr.Inline = verbs.SendSignaled, inline
	wrs := slices.Repeat([]verbs.SendWR{wr}, most)
	for i := range wrs {
		wrs[i].ID, wrs[i].SGL = uint64(i), slices.Clone(list)
	}
	return wrs
}

func (b *bench) measure(out *bufio.Writer) error {
	allocs, err := b.ticks.Measure(rounds, b.round)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "blocks %d\nallocs %d\n", b.dev.Blocks, allocs)
	return b.ticks.Print(out, b.figures)
}

// complete writes the completions of work requests of an opcode.
func (b *bench) complete(opcode uint8) {
	for range work {
		b.dev.CQs[0].Complete(1, deaf.Request, opcode, b.sent, size)
		b.sent += b.blocks
	}
}

func (b *bench) round(int) error {
	recv := b.dev.CQs[1]
	for i := range b.kinds {
		k := &b.kinds[i]
		for _, n := range []int{1, most} {
			start := tsc.Read()
			err := b.post(k.wrs[:n])
			b.ticks.Add(k.name, n, start)
			if err != nil {
				return err
			}
			b.complete(k.opcode)
			start = tsc.Read()
			err = b.poll(b.sendCQ, n)
			if err != nil {
				return err
			}
			if k.polled != "" {
				b.ticks.Add(k.polled, n, start)
			}
		}
	}
	if len(b.recvs) == 0 { // of a DCI
		return nil
	}
	for _, n := range []int{1, most} {
		start := tsc.Read()
		err := b.postRecv(b.recvs[:n])
		b.ticks.Add("post_recv", n, start)
		if err != nil {
			return err
		}
		recv.Complete(work, deaf.Receive, 0, b.received, size)
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
	b.complete(write.opcode)
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
