// Command by-hand moves queue pairs through their states itself, for settings that
// QP.Connect has no option for. It also uses what the simpler examples do not: memory of
// the caller, several pieces of it in one request, and immediates.
//
//	by-hand [-d DEVICE] [-uc]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	device := flag.String("d", "", "RDMA device (default: the first)")
	uc := flag.Bool("uc", false, "unreliable connections (UC)")
	flag.Parse()
	typ := verbs.RC
	if *uc {
		typ = verbs.UC
	}
	if err := run(*device, typ); err != nil {
		log.Fatal(err)
	}
}

func run(device string, typ verbs.QPType) error {
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	if d := ctx.Device(); d.IWARP() { // only the connection manager can
		return fmt.Errorf("connect iWARP by hand on %s: %w", d.Name, errors.ErrUnsupported)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	events, err := ctx.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 16, Channel: events})
	if err != nil {
		return err
	}
	defer cq.Close()
	// Any memory without Go pointers can be registered: here memory outside the Go heap.
	buf, err := mmap.NewBuffer(1<<16, mmap.BufferOptions{})
	if err != nil {
		return err
	}
	defer buf.Close()
	mem := buf.Bytes()
	mr, err := pd.RegisterMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	defer mr.Close()
	var qps [2]*uverbs.QP
	for i := range qps {
		if qps[i], err = pd.CreateQP(uverbs.QPOptions{Type: typ, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendSGE: 3}}); err != nil {
			return err
		}
		defer qps[i].Close()
	}
	for i, qp := range qps {
		if err := connect(qp, qps[1-i], typ); err != nil {
			return err
		}
	}

	// Three pieces, gathered into one message with an immediate.
	pieces := []verbs.SGE{mr.SGE(100, copy(mem[100:], "one, ")), mr.SGE(200, copy(mem[200:], "two, ")), mr.SGE(300, copy(mem[300:], "three"))}
	const n = len("one, two, three")
	a, b := qps[0], qps[1]
	recv := verbs.RecvWR{SGL: []verbs.SGE{mr.SGE(4096, 64)}}
	if _, err := b.PostRecv(recv, recv); err != nil {
		return err
	}
	if err := do(a, verbs.SendWR{Opcode: verbs.OpSendImm, Imm: 42, SGL: pieces}); err != nil {
		return err
	}
	fmt.Printf("  %q\n", mem[4096:4096+n])
	// The same, written to an address that the sender chooses; the immediate consumes
	// the receive.
	if err := do(a, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: 43, SGL: pieces, RemoteAddr: mr.Addr() + 8192, RKey: mr.RKey()}); err != nil {
		return err
	}
	fmt.Printf("  %q\n", mem[8192:8192+n])
	return nil
}

// connect moves a QP from RESET to RTS. ibv_modify_qp(3) lists what each step needs.
func connect(qp, peer *uverbs.QP, typ verbs.QPType) error {
	// Both QPs are on this port and have the same GID.
	end, err := peer.Addr(1)
	if err != nil {
		return err
	}
	init := verbs.QPAttr{State: verbs.StateInit, Port: 1, Access: verbs.AccessRemoteWrite}
	rtr := verbs.QPAttr{
		State: verbs.StateRTR, PathMTU: 3, DestQPNum: peer.Num(), MaxDestRDAtomic: 1, MinRNRTimer: 12,
		AV: end.PathFrom(end),
	}
	rts := verbs.QPAttr{State: verbs.StateRTS, Timeout: 14, RetryCount: 7, RNRRetry: 7, MaxRDAtomic: 1}
	rtrMask := verbs.MaskState | verbs.MaskAV | verbs.MaskPathMTU | verbs.MaskDestQPNum | verbs.MaskRQPSN
	rtsMask := verbs.MaskState | verbs.MaskSQPSN
	if typ == verbs.RC { // RC acknowledges, retries and reads
		rtrMask |= verbs.MaskMaxDestRDAtomic | verbs.MaskMinRNRTimer
		rtsMask |= verbs.MaskTimeout | verbs.MaskRetryCount | verbs.MaskRNRRetry | verbs.MaskMaxRDAtomic
	}
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{init, verbs.MaskState | verbs.MaskPKeyIndex | verbs.MaskPort | verbs.MaskAccess},
		{rtr, rtrMask},
		{rts, rtsMask},
	} {
		if err := qp.Modify(step.attr, step.mask); err != nil {
			return err
		}
	}
	got, err := qp.Query()
	if err != nil {
		return err
	}
	if got.State != verbs.StateRTS || got.DestQPNum != peer.Num() {
		return fmt.Errorf("QP is in state %v, connected to %d", got.State, got.DestQPNum)
	}
	return nil
}

// do posts a request and waits for its completion and the receive's.
func do(qp *uverbs.QP, wr verbs.SendWR) error {
	wr.Flags |= verbs.SendSignaled
	if _, err := qp.PostSend(wr); err != nil {
		return err
	}
	for range 2 {
		wc, err := qp.SendCQ().Next(context.Background())
		if err != nil {
			return err
		}
		if wc.Opcode == verbs.WCRecv || wc.Opcode == verbs.WCRecvRDMAImm {
			fmt.Printf("%v of %d bytes, immediate %d:\n", wc.Opcode, wc.ByteLen, wc.Imm())
		}
	}
	return nil
}
