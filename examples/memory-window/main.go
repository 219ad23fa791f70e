// Command memory-window grants a peer access to a part of its memory with a type 2 memory
// window. The peer writes to it; after the access is revoked, its next write is refused.
// Granting and revoking are ordinary requests, cheaper than registering memory.
//
//	memory-window [-d DEVICE]
package main

import (
	"context"
	"errors"
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

// side is one end of a connection and its memory.
type side struct {
	access verbs.Access
	qp     *uverbs.QP
	mr     *uverbs.MR
	addr   verbs.QPAddr
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
	window, err := pd.AllocMW(verbs.MWType2)
	if err != nil {
		return err
	}
	defer window.Close()
	events, err := ctx.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 8, Channel: events}) // for both sides
	if err != nil {
		return err
	}
	defer cq.Close()
	// Peers have access to the owner's memory only through a window.
	owner := side{access: verbs.AccessLocalWrite | verbs.AccessMWBind}
	peer := side{access: verbs.AccessLocalWrite}
	for _, s := range []*side{&owner, &peer} {
		if s.mr, err = pd.AllocMR(4096, s.access, uverbs.MROptions{}); err != nil {
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
	if err := owner.qp.Connect(owner.addr, peer.addr, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}); err != nil {
		return err
	}
	if err := peer.qp.Connect(peer.addr, owner.addr, uverbs.ConnectOptions{}); err != nil {
		return err
	}

	// Grant: bind the window to part of the memory, under a new key.
	key, err := owner.qp.BindMW(window, uverbs.BindOptions{
		Flags: verbs.SendSignaled, MR: owner.mr, Offset: 1024, Length: 512, Access: verbs.AccessRemoteWrite,
	})
	if err != nil {
		return err
	}
	if _, err := cq.Next(context.Background()); err != nil {
		return err
	}
	fmt.Printf("granted: 512 bytes of %d, to be written\n", owner.mr.Len())

	// Use: a peer with the key can write.
	n := copy(peer.mr.Bytes(), "written through the window")
	write := verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{peer.mr.SGE(0, n)}, RemoteAddr: owner.mr.Addr() + 1024, RKey: key,
	}
	if err := post(peer.qp, write); err != nil {
		return err
	}
	fmt.Printf("used: the owner's memory holds %q\n", owner.mr.Bytes()[1024:][:n])

	// Revoke: once this has completed, the key is invalid.
	if err := post(owner.qp, verbs.SendWR{Opcode: verbs.OpLocalInv, Flags: verbs.SendSignaled, InvalidateRKey: key}); err != nil {
		return err
	}
	fmt.Println("revoked")
	copy(peer.mr.Bytes(), "written without permission")
	err = post(peer.qp, write)
	if !errors.Is(err, verbs.WCRemAccessErr) {
		return fmt.Errorf("the peer was not refused: %v", err)
	}
	fmt.Printf("refused: %v; the owner's memory holds %q\n", err, owner.mr.Bytes()[1024:][:n])
	return nil
}

// post posts a request and waits for its completion.
func post(qp *uverbs.QP, wr verbs.SendWR) error {
	if _, err := qp.PostSend(wr); err != nil {
		return err
	}
	_, err := qp.SendCQ().Next(context.Background())
	return err
}
