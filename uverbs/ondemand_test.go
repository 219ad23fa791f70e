//go:build linux

package uverbs_test

import (
	"bytes"
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/mmap"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

const onDemandSize = 1 << 18

// onDemand is memory that is registered on demand.
type onDemand struct {
	*uverbs.MR
	mem []byte
}

func newOnDemand(t *testing.T, pd *uverbs.PD) *onDemand {
	t.Helper()
	buf := labtest.Made(mmap.NewBuffer(onDemandSize, mmap.BufferOptions{}))(t)
	mem := buf.Bytes()
	return &onDemand{labtest.Made(pd.RegisterMR(mem, verbs.AccessAll|verbs.AccessOnDemand, uverbs.MROptions{}))(t), mem}
}

// forget takes the pages from the memory, which then is zero.
func (m *onDemand) forget(t *testing.T) {
	t.Helper()
	labtest.Check(t, unix.Madvise(m.mem, unix.MADV_DONTNEED))
}

// pagedPair returns QPs of an adapter that has page faults.
func pagedPair(t *testing.T) (a, b *rdmatest.Endpoint) {
	labtest.RequireAdapter(t)
	return labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{})
}

// TestOnDemand uses memory whose pages the kernel has taken, as source and as destination of all
// operations.
func TestOnDemand(t *testing.T) {
	a, b := pagedPair(t)
	random := labtest.RandomBytes(7, onDemandSize)
	const n = onDemandSize - 300 // begins and ends within pages
	here, there := newOnDemand(t, a.PD), newOnDemand(t, b.PD)
	do := func(wr verbs.SendWR) {
		t.Helper()
		wr.Flags, wr.RKey = verbs.SendSignaled, there.RKey()
		send(t, a.QP, wr)
		next(t, a.SendCQ)
	}
	equal := func(what string, got, want []byte) {
		t.Helper()
		if !bytes.Equal(got, want) {
			t.Errorf("%s differs", what)
		}
	}
	zeros := make([]byte, onDemandSize)
	for round := range 3 {
		if round == 2 { // with advice, which brings the pages before
			here.forget(t)
			labtest.Check(t, a.PD.Advise(verbs.AdvisePrefetchWrite, true, here.SGE(0, onDemandSize)))
		}
		// The peer's memory is missing, this one's is not.
		copy(here.mem, random)
		there.forget(t)
		do(verbs.SendWR{Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{here.SGE(0, n)}, RemoteAddr: there.Addr() + 100})
		equal("a WRITE to missing pages", there.mem[100:][:n], random[:n])

		here.forget(t)
		do(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{here.SGE(50, n)}, RemoteAddr: there.Addr() + 100})
		equal("a READ to missing pages", here.mem[50:][:n], random[:n])

		there.forget(t)
		do(verbs.SendWR{Opcode: verbs.OpRDMARead, SGL: []verbs.SGE{here.SGE(50, n)}, RemoteAddr: there.Addr() + 100})
		equal("a READ of missing pages", here.mem[50:][:n], zeros[:n])

		// Missing pages among pinned ones, behind the first of them.
		copy(there.mem, random)
		here.forget(t)
		copy(a.MR.Bytes(), random[:3000])
		do(verbs.SendWR{
			Opcode:     verbs.OpRDMAWrite,
			SGL:        []verbs.SGE{a.MR.SGE(0, 3000), here.SGE(5000, 20000), a.MR.SGE(0, 100), here.SGE(4096, 8)},
			RemoteAddr: there.Addr(),
		})
		equal("a WRITE of several regions", there.mem[:23108], bytes.Join([][]byte{random[:3000], zeros[:20000], random[:100], zeros[:8]}, nil))

		copy(here.mem, random)
		there.forget(t)
		recv(t, b.QP, verbs.RecvWR{ID: 3, SGL: []verbs.SGE{there.SGE(8, 4000), there.SGE(20000, n-20000)}})
		do(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{here.SGE(0, n-16001)}})
		if wc := next(t, b.RecvCQ); wc.ID != 3 || wc.ByteLen != n-16001 {
			t.Errorf("receive: %+v", wc)
		}
		equal("a SEND to missing pages", there.mem[8:][:4000], random[:4000])
		equal("the rest of it", there.mem[20000:][:n-20001], random[4000:][:n-20001])

		here.forget(t)
		there.forget(t)
		recv(t, b.QP, verbs.RecvWR{ID: 4, SGL: []verbs.SGE{there.SGE(0, onDemandSize)}})
		do(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{here.SGE(0, n)}})
		next(t, b.RecvCQ)
		equal("a SEND from missing pages", there.mem, zeros)

		here.forget(t)
		there.forget(t)
		do(verbs.SendWR{
			Opcode: verbs.OpFetchAdd, SGL: []verbs.SGE{here.SGE(4096, 8)}, RemoteAddr: there.Addr() + 8192, Args: &verbs.SendArgs{CompareAdd: 5},
		})
		do(verbs.SendWR{
			Opcode: verbs.OpCompareSwap, SGL: []verbs.SGE{here.SGE(40960, 8)}, RemoteAddr: there.Addr() + 8192, Args: &verbs.SendArgs{CompareAdd: 5, Swap: 7},
		})
		word := binary.NativeEndian.Uint64
		if got, first, second := word(there.mem[8192:]), word(here.mem[4096:]), word(here.mem[40960:]); got != 7 || first != 0 || second != 5 {
			t.Errorf("atomics: %d, %d and %d", got, first, second)
		}
	}
}

// TestOnDemandFails: requests for memory that the program has unmapped fail as those for memory that
// was never registered, here and at the peer.
func TestOnDemandFails(t *testing.T) {
	for name, tt := range map[string]struct {
		op        verbs.Opcode
		here      bool // the memory is gone on this side
		want, rcv verbs.WCStatus
	}{
		"WRITE from":        {verbs.OpRDMAWrite, true, verbs.WCLocProtErr, 0},
		"READ to":           {verbs.OpRDMARead, true, verbs.WCLocProtErr, 0},
		"SEND from":         {verbs.OpSend, true, verbs.WCLocProtErr, 0},
		"WRITE to a peer's": {verbs.OpRDMAWrite, false, verbs.WCRemAccessErr, 0},
		"READ of a peer's":  {verbs.OpRDMARead, false, verbs.WCRemAccessErr, 0},
		"add to a peer's":   {verbs.OpFetchAdd, false, verbs.WCRemAccessErr, 0},
		"SEND to a peer's":  {verbs.OpSend, false, verbs.WCRemOpErr, verbs.WCLocProtErr},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pagedPair(t)
			mem := labtest.Must(unix.Mmap(-1, 0, onDemandSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))(t)
			pd := b.PD
			if tt.here {
				pd = a.PD
			}
			gone := labtest.Made(pd.RegisterMR(mem, verbs.AccessAll|verbs.AccessOnDemand, uverbs.MROptions{}))(t)
			sge := gone.SGE(0, 8)
			labtest.Check(t, unix.Munmap(mem))
			wr := verbs.SendWR{Opcode: tt.op, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: gone.Addr(), RKey: gone.RKey()}
			if tt.op == verbs.OpFetchAdd {
				wr.Args = &verbs.SendArgs{CompareAdd: 1}
			}
			r := verbs.RecvWR{SGL: []verbs.SGE{sge}}
			if tt.here {
				wr.SGL, wr.RemoteAddr, wr.RKey = []verbs.SGE{sge}, b.MR.Addr(), b.MR.RKey()
				r.SGL[0] = b.MR.SGE(0, 8)
			}
			recv(t, b.QP, r)
			send(t, a.QP, wr)
			if wc := nextAny(t, a.SendCQ).Status; wc != tt.want {
				t.Errorf("%v, want %v", wc, tt.want)
			}
			if tt.rcv != 0 {
				if wc := nextAny(t, b.RecvCQ).Status; wc != tt.rcv {
					t.Errorf("receive: %v, want %v", wc, tt.rcv)
				}
			}
		})
	}
}
