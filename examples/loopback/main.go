// Command loopback connects two queue pairs of one process and moves data between them in
// three ways: a SEND into a posted receive, an RDMA WRITE and an RDMA READ. WRITE and
// READ do not involve the other side's program.
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

// side is a queue pair and the memory that its peer may touch.
type side struct {
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
	cq, err := dev.CreateCQ(uverbs.CQOptions{Depth: 16, Channel: events}) // for both sides
	if err != nil {
		return err
	}
	defer cq.Close()
	var a, b side
	const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
	for _, s := range []*side{&a, &b} {
		if s.mr, err = pd.AllocMR(4096, access, uverbs.MROptions{}); err != nil {
			return err
		}
		defer s.mr.Close()
		if s.qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); err != nil {
			return err
		}
		defer s.qp.Close()
		if s.addr, err = s.qp.Addr(1); err != nil {
			return err
		}
	}
	// Each side must know the other's address. Both are known here, in one process.
	if err := a.qp.Connect(a.addr, b.addr, uverbs.ConnectOptions{Access: access}); err != nil {
		return err
	}
	if err := b.qp.Connect(b.addr, a.addr, uverbs.ConnectOptions{Access: access}); err != nil {
		return err
	}

	// SEND: the receive that the other side posted has the memory for the message.
	if _, err := b.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.mr.SGE(0, 64)}}); err != nil {
		return err
	}
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello from a")}, 2); err != nil {
		return err
	}
	fmt.Printf("SEND: b received %q\n", b.mr.Bytes()[:12])

	// RDMA WRITE: the request has the address in the other side's memory.
	n := copy(a.mr.Bytes(), "written by a")
	there := b.mr.Addr() + 1024
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: there, RKey: b.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA WRITE: b's memory holds %q\n", b.mr.Bytes()[1024:][:n])

	// RDMA READ: the same in the other direction.
	n = copy(b.mr.Bytes()[1024:], "to be read from b")
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: there, RKey: b.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA READ: a's memory holds %q\n", a.mr.Bytes()[:n])
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
