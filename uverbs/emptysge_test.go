//go:build linux

package uverbs_test

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// TestEmptySGEs sends, writes and receives with lists of which some elements are empty: these
// are no data, wherever they are. siw would crash the machine, and never release what the
// other elements of a receive name.
func TestEmptySGEs(t *testing.T) {
	const large = 5000 // more than a packet of Ethernet takes
	lists := [][]int{{0, 4}, {4, 0}, {0, 0}, {4, 0, 4}, {4, 0, 0, 4}, {large, 0, large}, {0, large, 0, large}}
	labtest.Each(t, func(t *testing.T, device string) {
		labtest.NeedsSGEs(t, device, 4)
		for _, withSRQ := range []bool{false, true} {
			a, b := labtest.NewPair(t, device, rdmatest.PairOptions{Memory: 8 * large, SRQ: withSRQ})
			randomBytes(a.MR.Bytes())
			pinned := pinnedKiB(t)
			extra := labtest.Must(b.PD.AllocMR(1<<20, verbs.AccessLocalWrite, uverbs.MROptions{}))(t)
			for _, keys := range []bool{false, true} {
				for _, lens := range lists {
					for _, op := range []verbs.Opcode{verbs.OpSend, verbs.OpRDMAWrite} {
						sgl, want := list(a.MR, keys, lens)
						recv := verbs.RecvWR{SGL: []verbs.SGE{{}, extra.SGE(0, large), {}, extra.SGE(large, 2*large)}}
						got := extra.Bytes()[:len(want)]
						if op == verbs.OpRDMAWrite {
							got = b.MR.Bytes()[:len(want)]
						}
						clear(got)
						if _, err := b.PostRecv(recv); err != nil {
							t.Fatal(err)
						}
						send(t, a.QP, verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, SGL: sgl, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey()})
						next(t, a.SendCQ)
						if op == verbs.OpRDMAWrite { // a message says that the data are there
							send(t, a.QP, verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled})
							next(t, a.SendCQ)
						}
						if wc := next(t, b.RecvCQ); op == verbs.OpSend && int(wc.ByteLen) != len(want) || !bytes.Equal(got, want) {
							t.Errorf("%v of %v, keys %t, SRQ %t: received %d bytes, want %d, the same: %t",
								op, lens, keys, withSRQ, wc.ByteLen, len(want), bytes.Equal(got, want))
						}
					}
				}
			}
			labtest.Check(t, extra.Close())
			if n := pinnedKiB(t); n > pinned {
				t.Errorf("SRQ %t: %d KiB are pinned after a region was closed, %d before it was registered", withSRQ, n, pinned)
			}
		}
	})
}

// list returns SGEs of the given lengths, one after the other in mr, and their data. Those of
// no bytes have a key, or nothing at all.
func list(mr *uverbs.MR, keys bool, lens []int) (sgl []verbs.SGE, data []byte) {
	off := 0
	for _, n := range lens {
		s := mr.SGE(off, n)
		if n == 0 && !keys {
			s = verbs.SGE{}
		}
		sgl = append(sgl, s)
		off += n
	}
	return sgl, mr.Bytes()[:off]
}

// pinnedKiB returns how much memory of this process devices have pinned.
func pinnedKiB(t *testing.T) (n int) {
	t.Helper()
	text := labtest.Must(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(text), "VmPin:")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatal(err)
	}
	return n
}
