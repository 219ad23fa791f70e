//go:build linux && !nordma

package engine

import (
	"syscall"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/mmap"
)

// TestRegisterUnmapped registers memory that does not exist.
func TestRegisterUnmapped(t *testing.T) {
	n := newNode(t, newTestNetwork(1, faults{}), 64, addrA)
	buf := must(mmap.NewBuffer(3*probeStep, mmap.BufferOptions{}))(t)
	addr := buf.Addr()
	if err := buf.Close(); err != nil {
		t.Fatal(err)
	}
	for _, at := range []struct{ addr, length uint64 }{
		{addr, probeStep}, {addr + 100, 1}, {addr + probeStep - 1, 2 * probeStep}, {8, 8}, {1 << 63, 8},
	} {
		want := syscall.EFAULT
		if uint64(uintptr(at.addr)) != at.addr {
			want = syscall.EINVAL
		}
		for _, access := range []verbs.Access{0, verbs.AccessLocalWrite} {
			if _, err := n.pd.RegisterMR(at.addr, at.length, at.addr, access); err != want {
				t.Errorf("%#x, %d bytes: %v", at.addr, at.length, err)
			}
		}
	}
}

// TestAccessUnmapped accesses regions whose memory the program has unmapped.
func TestAccessUnmapped(t *testing.T) {
	type end struct {
		*conn
		at  uint64 // of the memory
		key uint32
	}
	gone := func(e end) []verbs.SGE { return []verbs.SGE{{Addr: e.at, Length: 8, LKey: e.key}} }
	here := func(e end) []verbs.SGE { return []verbs.SGE{e.n.sge(0, 8)} }
	remote := func(o verbs.Opcode, y end) verbs.SendWR {
		return verbs.SendWR{Opcode: o, RemoteAddr: y.at, RKey: y.key}
	}
	for _, test := range []struct {
		name   string
		wr     func(x, y end) verbs.SendWR
		sgl    func(end) []verbs.SGE
		status verbs.WCStatus
	}{
		{"WRITE", func(x, y end) verbs.SendWR { return remote(verbs.OpRDMAWrite, y) }, here, verbs.WCRemAccessErr},
		{"READ", func(x, y end) verbs.SendWR { return remote(verbs.OpRDMARead, y) }, here, verbs.WCRemAccessErr},
		{"FETCH ADD", func(x, y end) verbs.SendWR { return remote(verbs.OpFetchAdd, y) }, here, verbs.WCRemAccessErr},
		{"COMPARE SWAP", func(x, y end) verbs.SendWR { return remote(verbs.OpCompareSwap, y) }, here, verbs.WCRemAccessErr},
		{"ATOMIC WRITE", func(x, y end) verbs.SendWR { return remote(verbs.OpAtomicWrite, y) }, nil, verbs.WCRemAccessErr},
		{"SEND", func(x, y end) verbs.SendWR { return verbs.SendWR{Opcode: verbs.OpSend} }, here, verbs.WCRemOpErr},
		{"READ into it", func(x, y end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.OpRDMARead, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
		}, gone, verbs.WCLocProtErr},
		{"WRITE from it", func(x, y end) verbs.SendWR {
			return verbs.SendWR{Opcode: verbs.OpRDMAWrite, RemoteAddr: y.n.addr(0), RKey: y.n.mr.RKey()}
		}, gone, verbs.WCLocQPOpErr},
	} {
		for _, where := range []string{"network", "device"} {
			t.Run(test.name+" "+where, func(t *testing.T) {
				net := newTestNetwork(1, faults{})
				a := newNode(t, net, 4096, addrA)
				b := a
				if where == "network" {
					b = newNode(t, net, 4096, addrB)
				}
				cx, cy := pair(a, b, verbs.RC)
				x, y := end{conn: cx}, end{conn: cy}
				for _, e := range []*end{&x, &y} {
					buf := must(mmap.NewBuffer(probeStep, mmap.BufferOptions{}))(t)
					e.at, e.key = buf.Addr(), e.n.register(buf.Bytes(), verbs.AccessAll).LKey()
					if err := buf.Close(); err != nil {
						t.Fatal(err)
					}
				}
				y.postRecv(9, gone(y)...)
				wr := test.wr(x, y)
				wr.ID = 1
				if test.sgl != nil {
					wr.SGL = test.sgl(x)
				} else {
					wr.Inline = make([]byte, 8)
				}
				x.post(wr)
				a.cq.expect(t, 1, test.status)
			})
		}
	}
}
