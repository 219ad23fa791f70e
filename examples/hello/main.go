// Command hello is the smallest program that moves data: a queue pair connected
// to itself sends a message and receives it.
//
//	hello [-d DEVICE]
package main

import (
	"fmt"
	"log"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	var flags struct {
		Device string `short:"d" help:"RDMA device (default: the first)."`
	}
	kong.Parse(&flags)
	log.SetFlags(0)
	if err := run(flags.Device); err != nil {
		log.Fatal(err)
	}
}

func run(device string) error {
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 16})
	if err != nil {
		return err
	}
	defer cq.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	qp, err := pd.CreateQP(uverbs.QPOptions{
		SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	if err != nil {
		return err
	}
	defer qp.Close()
	// Peers tell each other their endpoints; this one is its own peer. The GID
	// is the port's best.
	end, err := qp.Addr(1)
	if err != nil {
		return err
	}
	if err := qp.Connect(end, end, uverbs.ConnectOptions{}); err != nil {
		return err
	}
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()

	n := copy(mr.Bytes()[2048:], "hello")
	if _, err := qp.PostRecv(verbs.RecvWR{ID: 1, SGL: []verbs.SGE{mr.SGE(0, 2048)}}); err != nil {
		return err
	}
	if _, err := qp.PostSend(verbs.SendWR{ID: 2, Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(2048, n)}}); err != nil {
		return err
	}
	var wcs [2]verbs.WC
	for pending := 2; pending > 0; {
		done := wcs[:cq.Poll(wcs[:])]
		for i := range done {
			if err := done[i].Err(); err != nil {
				return err
			}
		}
		pending -= len(done)
	}
	fmt.Printf("received %q\n", mr.Bytes()[:n])
	return nil
}
