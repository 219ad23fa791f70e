// Command atomics starts workers that increment counters in memory by RDMA, each over its
// own queue pair: one with fetch-and-add, one with READ and WRITE under a lock that is
// taken with compare-and-swap. No increment is lost.
//
//	atomics [-d DEVICE]
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/goverbs/verbs"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

const (
	workers, count = 4, 50

	// The memory: 64-bit words in the machine's byte order, aligned to 8 bytes.
	counter, lock, guarded = 0, 8, 16
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
	ctx, err := uverbs.Open(device)
	if err != nil {
		return err
	}
	defer ctx.Close()
	if err := ctx.Probe(uverbs.FeatureAtomics); err != nil {
		return err
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		return err
	}
	defer pd.Close()
	memory, err := pd.AllocMR(24, verbs.AccessAll, uverbs.MROptions{})
	if err != nil {
		return err
	}
	defer memory.Close()
	done := make(chan error, workers)
	for id := range workers {
		go func() { done <- work(ctx, pd, memory, uint64(id)+1) }()
	}
	for range workers {
		err = errors.Join(err, <-done)
	}
	if err != nil {
		return err
	}
	added := binary.NativeEndian.Uint64(memory.Bytes()[counter:])
	locked := binary.NativeEndian.Uint64(memory.Bytes()[guarded:])
	fmt.Printf("%d workers counted to %d with fetch-and-add, to %d under the lock\n", workers, added, locked)
	if added != workers*count || locked != workers*count {
		return fmt.Errorf("want %d", workers*count)
	}
	return nil
}

// worker accesses memory over qp. mr holds the words that it reads and writes.
type worker struct {
	qp         *uverbs.QP
	mr, memory *uverbs.MR
}

func work(ctx *uverbs.Context, pd *uverbs.PD, memory *uverbs.MR, id uint64) error {
	mr, err := pd.AllocMR(8, verbs.AccessLocalWrite, uverbs.MROptions{})
	if err != nil {
		return err
	}
	defer mr.Close()
	events, err := ctx.CreateCompChannel()
	if err != nil {
		return err
	}
	defer events.Close()
	cq, err := ctx.CreateCQ(uverbs.CQOptions{Depth: 2, Channel: events})
	if err != nil {
		return err
	}
	defer cq.Close()
	// One queue pair for the worker, and one for the memory, which posts nothing.
	var qps [2]*uverbs.QP
	var addrs [2]verbs.QPAddr
	for i := range qps {
		if qps[i], err = pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq}); err != nil {
			return err
		}
		defer qps[i].Close()
		if addrs[i], err = qps[i].Addr(1); err != nil {
			return err
		}
	}
	for i := range qps {
		if err := qps[i].Connect(addrs[i], addrs[1-i], uverbs.ConnectOptions{Access: verbs.AccessAll}); err != nil {
			return err
		}
	}
	w := worker{qps[0], mr, memory}
	for range count {
		if _, err := w.do(verbs.SendWR{Opcode: verbs.OpFetchAdd, CompareAdd: 1}, counter); err != nil {
			return err
		}
		if err := w.countLocked(id); err != nil {
			return err
		}
	}
	return nil
}

// countLocked increments the counter under the lock, which holds the owner's id.
func (w *worker) countLocked(id uint64) error {
	for {
		owner, err := w.do(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: 0, Swap: id}, lock)
		if err != nil {
			return err
		}
		if owner == 0 {
			break
		}
	}
	n, err := w.do(verbs.SendWR{Opcode: verbs.OpRDMARead}, guarded)
	if err != nil {
		return err
	}
	binary.NativeEndian.PutUint64(w.mr.Bytes(), n+1)
	if _, err := w.do(verbs.SendWR{Opcode: verbs.OpRDMAWrite}, guarded); err != nil {
		return err
	}
	owner, err := w.do(verbs.SendWR{Opcode: verbs.OpCompareSwap, CompareAdd: id, Swap: 0}, lock)
	if err == nil && owner != id {
		err = fmt.Errorf("worker %d's lock is %d's", id, owner)
	}
	return err
}

// do posts a request on a word of the memory, waits, and returns the word in mr: for
// atomics and reads the previous value.
func (w *worker) do(wr verbs.SendWR, off uint64) (uint64, error) {
	wr.Flags, wr.SGL = verbs.SendSignaled, []verbs.SGE{w.mr.SGE(0, 8)}
	wr.RemoteAddr, wr.RKey = w.memory.Addr()+off, w.memory.RKey()
	if _, err := w.qp.PostSend(wr); err != nil {
		return 0, err
	}
	if _, err := w.qp.SendCQ().Next(context.Background()); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(w.mr.Bytes()), nil
}
