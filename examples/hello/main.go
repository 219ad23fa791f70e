// Command hello is the smallest program that moves data: a queue pair connected
// to itself sends a message and receives it.
//
//	hello [-d DEVICE]
package main

import (
	"context"
	"flag"
	"fmt"
	"log"

	"github.com/goverbs/verbs"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	flag.Parse()
	if err := run(*device); err != nil {
		log.Fatal(err)
	}
}

func run(device string) error {
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	events, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 2, Channel: events})
	if err != nil {
		return err
	}
	defer cq.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	qp, err := pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq})
	if err != nil {
		return err
	}
	defer qp.Close()
	// Peers exchange their addresses, see QPAddr.Offer; this QP is its own peer.
	addr, err := qp.Addr(1)
	if err != nil {
		return err
	}
	if err := qp.Connect(addr, addr, uverbs.ConnectOptions{}); err != nil {
		return err
	}
	mr, err := pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()

	n := copy(mr.Bytes()[2048:], "hello")
	if _, err := qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(0, 2048)}}); err != nil {
		return err
	}
	if _, err := qp.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{mr.SGE(2048, n)}}); err != nil {
		return err
	}
	for range 2 { // the receive and the send
		if _, err := cq.Next(context.Background()); err != nil {
			return err
		}
	}
	fmt.Printf("received %q\n", mr.Bytes()[:n])
	return nil
}
