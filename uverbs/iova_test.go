//go:build linux

package uverbs_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestIOVA reads from a region by the address that the program chose for it. A driver
// that supports only the memory's address must refuse others.
func TestIOVA(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.Each(t, func(t *testing.T, device string) {
		a, b := labtest.NewPair(t, device, rdmatest.PairOptions{})
		for _, iova := range []uint64{1 << 20, 0} {
			readAt(t, device, a, b, iova)
		}
	})
}

// readAt reads from a region at iova of b.
func readAt(t *testing.T, device string, a, b *rdmatest.Endpoint, iova uint64) {
	mr, err := b.PD.AllocMR(8192, verbs.AccessLocalWrite|verbs.AccessRemoteRead, uverbs.MROptions{IOVA: &iova})
	if !labtest.Has(t, device, uverbs.FeatureIOVA) {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v, want a refusal", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if mr.Addr() != iova {
		t.Errorf("the region is at %#x, want %#x", mr.Addr(), iova)
	}
	labtest.Close(t, mr)
	const off, n = 5000, 3000
	for i := range mr.Bytes() {
		mr.Bytes()[i] = byte(i * i / 7)
	}
	if _, err := a.QP.PostSend(verbs.SendWR{
		Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, n)}, RemoteAddr: iova + off, RKey: mr.RKey(),
	}); err != nil {
		t.Fatal(err)
	}
	var wc [1]verbs.WC
	for start := time.Now(); a.SendCQ.Poll(wc[:]) == 0; {
		if time.Since(start) > 5*time.Second {
			t.Fatal("no completion")
		}
	}
	if err := wc[0].Err(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.MR.Bytes()[:n], mr.Bytes()[off:off+n]) {
		t.Errorf("what was read at %#x differs", iova)
	}
}
