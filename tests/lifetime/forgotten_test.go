package lifetime

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"weak"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/uverbs"
)

// TestUnreachableConn drops an endpoint to which its peer continues to write: the
// endpoint stays connected, as the connection manager must notify it of its end, and its
// memory is not reused.
func TestUnreachableConn(t *testing.T) {
	labtest.EachClean(t, func(t *testing.T, device string) {
		var addr uint64
		var key uint32
		const size = 64 << 10
		opt := cm.Options{Setup: func(e *cm.Endpoint) error {
			mr, err := e.AllocMR(size, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
			if err == nil {
				addr, key = mr.Addr(), mr.RKey() // of the accepted endpoint, which is set up last
			}
			return err
		}}
		a, forgotten := connectWeak(t, device, opt)
		labtest.Collect()
		pattern := bytes.Repeat([]byte{0xa5}, 64)
		for i := range 200 {
			at := addr + uint64(rand.IntN(size-64))
			if _, err := a.QP.PostSend(verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Inline: pattern, RemoteAddr: at, RKey: key}); err != nil {
				t.Fatal(err)
			}
			var wc [1]verbs.WC
			labtest.Until(t, "the completion", func() bool { return a.SendCQ.Poll(wc[:]) == 1 })
			if err := wc[0].Err(); err != nil {
				t.Fatalf("write %d to a forgotten endpoint: %v", i, err)
			}
			// The peer must not write to new memory.
			buf := labtest.Must(mmap.NewBuffer(size, mmap.BufferOptions{}))(t)
			if bytes.IndexByte(buf.Bytes(), 0xa5) >= 0 {
				t.Fatal("the memory of a forgotten endpoint is somebody else's")
			}
			buf.Close()
			if i%20 == 0 {
				runtime.GC()
			}
		}
		check(t, a.Close())
		b := forgotten.Value()
		if b == nil {
			t.Fatal("it is gone") // and its memory, to which the peer could write
		}
		<-b.Done()
		check(t, b.Close())
	})
}

// connectWeak connects two endpoints, and returns only a weak pointer to the second.
func connectWeak(t *testing.T, device string, opt cm.Options) (*cm.Endpoint, weak.Pointer[cm.Endpoint]) {
	a, b := endpoints(t, device, opt)
	return a, weak.Make(b)
}

// TestUnreachableWindow drops a region and the window that is bound to it. The window must be
// deallocated first, and until then the Go memory of the region must stay pinned.
func TestUnreachableWindow(t *testing.T) {
	labtest.RequireBoth(t)
	before := labtest.SettledInventory(t)
	for range 10 * *times {
		dropWindow(t, false)
		dropWindow(t, true)
	}
	labtest.CheckLeaks(t, before)
}

// dropWindow binds a window and drops everything. With closing, it first calls Close of
// the region, which fails.
func dropWindow(t *testing.T, closing bool) {
	ctx := labtest.Must(uverbs.Open(labtest.RXE))(t)
	pd := labtest.Must(ctx.AllocPD())(t)
	cq := labtest.Must(ctx.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
	qp := labtest.Must(pd.CreateQP(uverbs.QPOptions{SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}))(t)
	self := labtest.Must(qp.Addr(1))(t)
	check(t, qp.Connect(self, self, uverbs.ConnectOptions{}))
	mr := labtest.Must(pd.RegisterMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessMWBind, uverbs.MROptions{}))(t)
	mw := labtest.Must(pd.AllocMW(verbs.MWType1))(t)
	labtest.Must(qp.BindMW(mw, uverbs.BindOptions{Flags: verbs.SendSignaled, MR: mr, Length: mr.Len(), Access: verbs.AccessRemoteWrite}))(t)
	var wc [1]verbs.WC
	labtest.Until(t, "the binding", func() bool { return cq.Poll(wc[:]) == 1 })
	check(t, wc[0].Err())
	if closing {
		if err := mr.Close(); err == nil {
			t.Error("a region was closed under its window")
		}
	}
	check(t, qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState)) // or its peer could use it
}

// TestImportedClose closes contexts of one file, and the objects created from them, in any
// order, while they are used: each works until it is closed itself.
func TestImportedClose(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.EachClean(t, func(t *testing.T, device string) {
		labtest.Needs(t, device, uverbs.FeatureImport)
		for range 8 * *times {
			made := labtest.Must(uverbs.Open(device))(t)
			pd := labtest.Must(made.AllocPD())(t)
			mr := labtest.Must(pd.AllocMR(4096, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
			imported := labtest.Must(uverbs.ImportContext(made.FD()))(t)
			theirs := labtest.Must(imported.ImportPD(pd.Handle()))(t)
			same := labtest.Must(theirs.ImportMR(mr.Handle()))(t)
			if same.LKey() != mr.LKey() || same.Len() != mr.Len() {
				t.Errorf("the imported region is another: %#x, %d", same.LKey(), same.Len())
			}
			cq := labtest.Must(imported.CreateCQ(uverbs.CQOptions{Depth: 4}))(t)
			for _, c := range []closer{made, pd, imported, theirs} {
				if err := c.Close(); !errors.Is(err, verbs.ErrInUse) {
					t.Errorf("closing what others stand on: %v", err)
				}
			}
			var users sync.WaitGroup
			for _, ctx := range []*uverbs.Context{made, imported} {
				users.Go(func() {
					for {
						own, err := ctx.AllocPD()
						if errors.Is(err, net.ErrClosed) {
							return
						}
						if err != nil {
							t.Error(err)
							return
						}
						check(t, own.Close())
					}
				})
			}
			// Children are closed before their parents, otherwise in any order; the
			// context that created the region and PD after the one that imported them.
			chains := [][]closer{{same, theirs, mr, pd, made}, {cq}}
			if rand.IntN(2) == 0 {
				chains = [][]closer{{same, theirs}, {cq}, {mr, pd, made}}
			}
			rand.Shuffle(len(chains), func(i, j int) { chains[i], chains[j] = chains[j], chains[i] })
			closing := func(c closer) {
				// It is in use only while a PD of a user exists.
				labtest.Until(t, "the end of its users", func() bool {
					err := c.Close()
					if err != nil && !errors.Is(err, verbs.ErrInUse) {
						t.Error(err)
						return true
					}
					return err == nil
				})
			}
			var all sync.WaitGroup
			for _, chain := range chains {
				all.Go(func() {
					for _, c := range chain {
						closing(c)
					}
				})
			}
			all.Wait()
			closing(imported)
			users.Wait()
			for _, c := range []closer{same, theirs, cq, mr, pd, made, imported} {
				check(t, c.Close()) // again
			}
		}
	})
}
