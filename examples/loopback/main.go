// Command loopback connects two queue pairs of one process and moves data between them in
// three ways: a SEND into a posted receive, an RDMA WRITE and an RDMA READ. WRITE and
// READ do not involve the program at the other end.
//
//	loopback [-d DEVICE]
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

// endpoint is a queue pair and the memory that its peer may touch.
type endpoint struct {
	qp   *uverbs.QP
	mr   *uverbs.MR
	addr verbs.QPAddr
}

func run(device string) error {
	dev, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer dev.Close()
	pd, err := dev.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	events, err := dev.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 16, Channel: events}) // for both ends
	if err != nil {
		return err
	}
	defer cq.Close()
	var requester, responder endpoint
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	for _, e := range []*endpoint{&requester, &responder} {
		if e.mr, err = pd.AllocMR(4096, access, uverbs.MROptions{}); err != nil {
			return err
		}
		defer e.mr.Close()
		if e.qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); err != nil {
			return err
		}
		defer e.qp.Close()
		if e.addr, err = e.qp.Addr(1); err != nil {
			return err
		}
	}
	// Each end must know the other's address. Both are known here, in one process.
	if err := requester.qp.Connect(requester.addr, responder.addr, uverbs.ConnectOptions{Access: access}); err != nil {
		return err
	}
	if err := responder.qp.Connect(responder.addr, requester.addr, uverbs.ConnectOptions{Access: access}); err != nil {
		return err
	}

	// SEND: the receive that the responder has posted has the memory for the message.
	if _, err := responder.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{responder.mr.SGE(0, 64)}}); err != nil {
		return err
	}
	if err := do(requester.qp, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello")}, 2); err != nil {
		return err
	}
	fmt.Printf("SEND: the responder received %q\n", responder.mr.Bytes()[:5])

	// RDMA WRITE: the request has the address in the responder's memory.
	n := copy(requester.mr.Bytes(), "written")
	there := responder.mr.Addr() + 1024
	if err := do(requester.qp, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{requester.mr.SGE(0, n)}, RemoteAddr: there, RKey: responder.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA WRITE: the responder's memory holds %q\n", responder.mr.Bytes()[1024:][:n])

	// RDMA READ: the same in the other direction.
	n = copy(responder.mr.Bytes()[1024:], "to be read")
	if err := do(requester.qp, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{requester.mr.SGE(0, n)}, RemoteAddr: there, RKey: responder.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA READ: the requester's memory holds %q\n", requester.mr.Bytes()[:n])
	return nil
}

// do posts a request and waits for the completions that it causes.
func do(qp *uverbs.QP, wr verbs.SendWR, completions int) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := qp.PostSend(wr); err != nil {
		return err
	}
	for range completions {
		if _, err := qp.SendCQ().Next(context.Background()); err != nil {
			return err
		}
	}
	return nil
}
