// Command mlx5 measures what posting and polling cost with provider/mlx5, on an adapter that is not
// there, as package rounds describes. Its counterpart, c/mlx5.c on libmlx5, takes the same arguments,
// does the same and prints the same.
//
//	mlx5 [-single] [-dci]
//
// With -single the queues have no locks: SingleThreaded, or MLX5_SINGLE_THREADED=1. With -dci the QP is
// an initiator of DC instead of an RC QP. Its requests take two blocks of the queue, and name their
// target. Names of a DCI's figures begin with "dci_", and say which requests have 8 bytes inline.
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
	dci := flag.Bool("dci", false, "use an initiator of DC")
	flag.Parse()
	if err := run(*single, *dci); err != nil {
		log.Fatal("mlx5: ", err)
	}
}

func run(single, dci bool) error {
	dev, ctx, err := deaf.Open("mlx5_0")
	if err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	b := &rounds.Bench{Figures: 12, Unit: "blocks", Units: func() int { return dev.Blocks }}
	opt := uverbs.QPOptions{
		SingleThreaded: single,
		Cap:            verbs.QPCap{MaxSendWR: rounds.Depth, MaxRecvWR: rounds.Depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 200},
	}
	blocks := uint16(1) // of a send request
	var to verbs.UDAddr
	if dci {
		ah, err := pd.CreateAH(verbs.AddressVector{Port: 1, DLID: 1})
		if err != nil {
			return err
		}
		to = ah.To(7, 0)
		opt.Type, opt.DCKey, opt.Cap.MaxInline = verbs.DCI, 8, 8
		b.Figures, blocks = 10, 2
	}
	// In libmlx5 each request has room for 4 blocks, as the longest here; a DCI's has for 2 without
	// windows.
	if err := b.Open(ctx, pd, rounds.Depth-1, opt); err != nil {
		return err
	}
	var sent, received uint16 // blocks posted
	kind := func(name, polled string, opcode verbs.Opcode, inCQE uint8, inline bool) rounds.Kind {
		wr := verbs.SendWR{Opcode: opcode, RemoteAddr: 1 << 20, RKey: 6, To: to}
		if inline {
			wr.Inline = make([]byte, 8)
		} else {
			wr.SGL = []verbs.SGE{rounds.SGE}
		}
		return rounds.Kind{Name: name, Polled: polled, Requests: rounds.Requests(wr), Complete: func() {
			for range rounds.Work {
				dev.CQs[0].Complete(1, deaf.Request, inCQE, sent, rounds.Size)
				sent += blocks
			}
		}}
	}
	if dci {
		b.Kinds = []rounds.Kind{
			kind("dci_send_inline", "", verbs.OpSend, deaf.Send, true),
			kind("dci_send", "", verbs.OpSend, deaf.Send, false),
			kind("dci_write_inline", "", verbs.OpRDMAWrite, deaf.Write, true),
			kind("dci_write", "dci_poll", verbs.OpRDMAWrite, deaf.Write, false),
		}
		return b.Run()
	}
	b.Kinds = []rounds.Kind{
		kind("send", "", verbs.OpSend, deaf.Send, true),
		kind("write", "poll", verbs.OpRDMAWrite, deaf.Write, false),
	}
	b.Both = &b.Kinds[1]
	b.CompleteRecvs = func() {
		dev.CQs[1].Complete(rounds.Work, deaf.Receive, 0, received, rounds.Size)
		received += rounds.Work
	}
	return b.Run()
}
