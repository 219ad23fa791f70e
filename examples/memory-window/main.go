// Command memory-window lends a peer part of its memory by a type 2 memory
// window, which the peer writes to, and takes it back: the peer is refused.
// Granting and revoking are requests like any other, without a system call's
// cost, unlike the registration of memory.
//
//	memory-window [-d DEVICE]
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

// side is one end of a connection and its memory.
type side struct {
	access verbs.Access
	qp     *uverbs.QP
	mr     *uverbs.MR
	end    verbs.QPAddr
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
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 8}) // of both sides
	if err != nil {
		return err
	}
	defer cq.Close()
	// The owner's memory admits windows, and without one no peer.
	owner := side{access: verbs.AccessLocalWrite | verbs.AccessMWBind}
	peer := side{access: verbs.AccessLocalWrite}
	for _, s := range []*side{&owner, &peer} {
		if s.mr, err = pd.AllocMR(4096, s.access, uverbs.MROptions{}); err != nil {
			return err
		}
		defer s.mr.Close()
		if s.qp, err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}); err != nil {
			return err
		}
		defer s.qp.Close()
		if s.end, err = s.qp.Addr(1); err != nil {
			return err
		}
	}
	if err := owner.qp.Connect(owner.end, peer.end, uverbs.ConnectOptions{Access: verbs.AccessRemoteWrite}); err != nil {
		return err
	}
	if err := peer.qp.Connect(peer.end, owner.end, uverbs.ConnectOptions{}); err != nil {
		return err
	}

	// Grant: bind the window to part of the memory, under a new key.
	key, err := owner.qp.BindMW(window, uverbs.BindOptions{
		Flags: verbs.SendSignaled, MR: owner.mr, Offset: 1024, Length: 512, Access: verbs.AccessRemoteWrite,
	})
	if err != nil {
		return err
	}
	if err := wait(cq); err != nil {
		return err
	}
	fmt.Printf("granted: 512 bytes of %d, to be written\n", owner.mr.Len())

	// Use: whoever has the key can write.
	n := copy(peer.mr.Bytes(), "written through the window")
	write := verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled,
		SGL: []verbs.SGE{peer.mr.SGE(0, n)}, RemoteAddr: owner.mr.Addr() + 1024, RKey: key,
	}
	if err := post(peer.qp, write); err != nil {
		return err
	}
	fmt.Printf("used: the owner's memory holds %q\n", owner.mr.Bytes()[1024:][:n])

	// Revoke: once this has completed the key is worth nothing.
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
	return wait(qp.SendCQ())
}

func wait(cq *uverbs.CQ) error {
	var wc [1]verbs.WC
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if cq.Poll(wc[:]) == 1 {
			return wc[0].Err()
		}
	}
	return errors.New("no completion in 5 s")
}
