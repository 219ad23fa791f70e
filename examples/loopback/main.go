// Command loopback connects two queue pairs of one process and moves data
// between them in the three ways there are: a SEND into a receive that waits
// for it, and an RDMA WRITE and an RDMA READ, of which the other side notices
// nothing.
//
//	loopback [-d DEVICE]
package main

import (
	"errors"
	"fmt"
	"log"
	"time"

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

// side is a queue pair and the memory that its peer may touch.
type side struct {
	qp  *uverbs.QP
	mr  *uverbs.MR
	end verbs.QPAddr
}

func run(device string) error {
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 16}) // for all requests of both sides
	if err != nil {
		return err
	}
	defer cq.Close()
	var a, b side
	for _, s := range []*side{&a, &b} {
		access := verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead
		if s.mr, err = pd.AllocMR(4096, access, uverbs.MROptions{}); err != nil {
			return err
		}
		defer s.mr.Close()
		if s.qp, err = pd.CreateQP(uverbs.QPOptions{
			Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: 64},
		}); err != nil {
			return err
		}
		defer s.qp.Close()
		if s.end, err = s.qp.Addr(1); err != nil {
			return err
		}
	}
	// Each side must know the other's end. In one process that is easy.
	access := uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite | verbs.AccessRemoteRead}
	if err := a.qp.Connect(a.end, b.end, access); err != nil {
		return err
	}
	if err := b.qp.Connect(b.end, a.end, access); err != nil {
		return err
	}

	// SEND: the receiver has said beforehand where a message may go.
	if _, err := b.qp.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.mr.SGE(0, 64)}}); err != nil {
		return err
	}
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte("hello from a")}, 2); err != nil {
		return err
	}
	fmt.Printf("SEND: b received %q\n", b.mr.Bytes()[:12])

	// RDMA WRITE: the sender says where it goes in the other's memory.
	n := copy(a.mr.Bytes(), "written by a")
	there := b.mr.Addr() + 1024
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: there, RKey: b.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA WRITE: b's memory holds %q\n", b.mr.Bytes()[1024:][:n])

	// RDMA READ: the same, the other way.
	n = copy(b.mr.Bytes()[1024:], "to be read from b")
	if err := do(a.qp, verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{a.mr.SGE(0, n)}, RemoteAddr: there, RKey: b.mr.RKey()}, 1); err != nil {
		return err
	}
	fmt.Printf("RDMA READ: a's memory holds %q\n", a.mr.Bytes()[:n])
	return nil
}

// do posts a request and polls for the completions it causes.
func do(qp *uverbs.QP, wr verbs.SendWR, completions int) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := qp.PostSend(wr); err != nil {
		return err
	}
	var wc [1]verbs.WC
	for end := time.Now().Add(5 * time.Second); completions > 0; {
		if completions -= qp.SendCQ().Poll(wc[:]); wc[0].Err() != nil {
			return wc[0].Err()
		}
		if time.Now().After(end) {
			return errors.New("no completion in 5 s")
		}
	}
	return nil
}
