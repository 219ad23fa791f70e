// Command erdma measures what posting and polling cost with provider/erdma, on an adapter that is not
// there, as package rounds describes. Its counterpart, c/erdma.c on liberdma, does the same and prints
// the same.
//
//	erdma [-single]
//
// With -single the queues have no locks: SingleThreaded. liberdma always has them.
package main

import (
	"flag"
	"log"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/tests/bench/deaf"
	"github.com/goverbs/verbs/tests/bench/rounds"
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	single := flag.Bool("single", false, "leave out locks")
	flag.Parse()
	if err := run(*single); err != nil {
		log.Fatal("erdma: ", err)
	}
}

func run(single bool) error {
	dev, ctx, err := deaf.OpenErdma("erdma_0")
	if err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	b := &rounds.Bench{Figures: 12, Unit: "units", Units: func() int { return dev.Units }}
	err = b.Open(ctx, pd, rounds.Depth, uverbs.QPOptions{
		SingleThreaded: single,
		Cap:            verbs.QPCap{MaxSendWR: rounds.Depth, MaxRecvWR: rounds.Depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 8},
	})
	if err != nil {
		return err
	}
	var sent, received uint16 // units, and receives
	kind := func(name, polled string, units int, inCQE uint8, wr verbs.SendWR) rounds.Kind {
		return rounds.Kind{Name: name, Polled: polled, Requests: rounds.Requests(wr), Complete: func() {
			dev.CQs[0].Complete(rounds.Work, false, inCQE, sent, units, rounds.Size)
			sent += uint16(rounds.Work * units)
		}}
	}
	b.Kinds = []rounds.Kind{
		kind("send", "", 1, deaf.ErdmaSend, verbs.SendWR{Opcode: verbs.OpSend, Inline: make([]byte, 8)}),
		kind("write", "poll", 2, deaf.ErdmaWrite, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{rounds.SGE}, RemoteAddr: 1 << 20, RKey: 6}),
	}
	b.Both = &b.Kinds[1]
	b.CompleteRecvs = func() {
		dev.CQs[1].Complete(rounds.Work, true, deaf.ErdmaRecv, received, 1, rounds.Size)
		received += rounds.Work
	}
	return b.Run()
}
