//go:build linux

package mlx5_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/mlx5"
	"github.com/goverbs/verbs/rdmatest"
	"github.com/goverbs/verbs/uverbs"
)

// driver is the registered driver, of which each test chooses the kind.
type driver struct{ mlx5.Driver }

func (d *driver) GetContext(dev *provider.Device, get func(provider.UHW) error) (provider.Context, error) {
	return d.Driver.GetContext(dev, get)
}

var current = &driver{}

func init() { provider.Register(current) }

// kinds runs a test with each kind of context, with -short with the usual one.
func kinds(t *testing.T, test func(t *testing.T)) {
	labtest.RequireAdapter(t)
	for _, kind := range labtest.Few(1, []struct {
		name   string
		driver mlx5.Driver
	}{
		{"as usual", mlx5.Driver{}},
		{"static registers", mlx5.NewDriver(true, 0)},
		{"CQEs of 128 bytes", mlx5.NewDriver(false, 128)},
	}) {
		t.Run(kind.name, func(t *testing.T) {
			current.Driver = kind.driver
			test(t)
		})
	}
}

// transfer is a pair whose side a sends to b, with what is expected.
type transfer struct {
	t    *testing.T
	a, b *rdmatest.Endpoint
	typ  verbs.QPType
	rand *rand.Rand
	id   uint64
}

// poll waits for a completion.
func poll(t *testing.T, cq *uverbs.CQ) verbs.WC {
	t.Helper()
	var wcs [1]verbs.WC
	labtest.Until(t, "completion", func() bool { return cq.Poll(wcs[:]) == 1 })
	return wcs[0]
}

// next transfers one message of a random kind and checks its data and completions.
func (x *transfer) next() {
	t, r := x.t, x.rand
	t.Helper()
	x.id++
	most, head := 8192, 0
	ops := []verbs.Opcode{verbs.OpSend, verbs.OpSendImm}
	switch x.typ {
	case verbs.RC:
		ops = append(ops, verbs.OpRDMARead, verbs.OpCompareSwap, verbs.OpFetchAdd, verbs.OpRDMAWrite, verbs.OpRDMAWriteImm)
	case verbs.UC:
		ops = append(ops, verbs.OpRDMAWrite, verbs.OpRDMAWriteImm)
	case verbs.UD:
		most, head = 1024, verbs.GRHSize
	}
	op := ops[r.IntN(len(ops))]
	n := r.IntN(most + 1)
	atomic := op == verbs.OpCompareSwap || op == verbs.OpFetchAdd
	if atomic {
		n = 8
	}
	from, to := x.a.MR.Bytes()[:n], x.b.MR.Bytes()[head:head+n]
	for i := range from {
		from[i], to[i] = byte(r.Uint32()), byte(r.Uint32())
	}
	sent, there := slices.Clone(from), slices.Clone(to)
	cut := 0
	if n > 0 {
		cut = r.IntN(n + 1)
	}
	wr := verbs.SendWR{
		ID: x.id, Opcode: op, Flags: verbs.SendSignaled, Imm: r.Uint32(), To: x.a.Peer, RemoteAddr: x.b.MR.Addr() + uint64(head), RKey: x.b.MR.RKey(),
		SGL: []verbs.SGE{x.a.MR.SGE(0, cut), x.a.MR.SGE(cut, n-cut)}, Args: &verbs.SendArgs{CompareAdd: r.Uint64(), Swap: r.Uint64()},
	}
	if atomic {
		wr.SGL = []verbs.SGE{x.a.MR.SGE(0, 8)}
	}
	if inlined := !atomic && op != verbs.OpRDMARead && n <= 64 && r.IntN(2) == 0; inlined {
		wr.SGL, wr.Inline, wr.Args.InlineList = nil, from[:cut], [][]byte{from[cut:]}
	}
	receives := op == verbs.OpSend || op == verbs.OpSendImm || op == verbs.OpRDMAWriteImm
	if receives {
		if _, err := x.b.PostRecv(verbs.RecvWR{ID: ^x.id, SGL: []verbs.SGE{x.b.MR.SGE(0, head+n/2), x.b.MR.SGE(head+n/2, n-n/2)}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := x.a.QP.PostSend(wr); err != nil {
		t.Fatal(err)
	}
	what := fmt.Sprintf("%v %v of %d bytes, %d SGEs", x.typ, op, n, len(wr.SGL))
	if wc := poll(t, x.a.SendCQ); wc.Err() != nil || wc.ID != x.id || wc.QPNum != x.a.QP.Num() {
		t.Fatalf("%s: %+v", what, wc)
	}
	if receives {
		wc := poll(t, x.b.RecvCQ)
		if wc.Err() != nil || wc.ID != ^x.id || int(wc.ByteLen) != head+n || (wc.Flags&verbs.WCWithImm != 0) != (op != verbs.OpSend) ||
			op != verbs.OpSend && wc.Imm() != wr.Imm || wc.QPNum != x.b.QP.Num() {
			t.Fatalf("%s: %+v", what, wc)
		}
		// On InfiniBand the path needs no GRH.
		grh := labtest.Must(x.b.PD.Context().QueryPort(1))(t).LinkLayer == verbs.LinkEthernet
		if x.typ == verbs.UD && (wc.SrcQP != x.a.QP.Num() || grh && wc.Flags&verbs.WCGRH == 0 || wc.Port != 1) {
			t.Fatalf("%s: %+v", what, wc)
		}
	} else if !atomic && op == verbs.OpRDMAWrite {
		labtest.Until(t, "data", func() bool { return bytes.Equal(to, sent) }) // UC may complete before it is there
	}
	switch {
	case op == verbs.OpRDMARead:
		if !bytes.Equal(from, there) {
			t.Fatalf("%s: other data", what)
		}
	case atomic:
		if !bytes.Equal(from, there) {
			t.Fatalf("%s: returned %x, not %x", what, from, there)
		}
	case !bytes.Equal(to, sent):
		t.Fatalf("%s: other data", what)
	}
}

// TestTransfers transfers messages of all kinds and lengths over QPs of all types, also with an
// SRQ.
func TestTransfers(t *testing.T) {
	kinds(t, func(t *testing.T) {
		for _, test := range []struct {
			typ verbs.QPType
			srq bool
		}{{verbs.RC, false}, {verbs.RC, true}, {verbs.UC, false}, {verbs.UC, true}, {verbs.UD, false}, {verbs.UD, true}} {
			t.Run(fmt.Sprintf("%v, SRQ %v", test.typ, test.srq), func(t *testing.T) {
				a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{Type: test.typ, SRQ: test.srq})
				x := &transfer{t: t, a: a, b: b, typ: test.typ, rand: rand.New(rand.NewPCG(uint64(test.typ), 1))}
				for range labtest.Rounds(600, 200) {
					x.next()
				}
			})
		}
	})
}

// TestResizeUnderTraffic changes the size of CQs while completions are in them and arrive.
func TestResizeUnderTraffic(t *testing.T) {
	kinds(t, func(t *testing.T) {
		a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{All: true})
		var posted, got uint64
		for i := range labtest.Rounds(200, 50) {
			for range 10 {
				if _, err := b.PostRecv(verbs.RecvWR{ID: posted, SGL: []verbs.SGE{b.MR.SGE(0, 8)}}); err != nil {
					t.Fatal(err)
				}
				if _, err := a.QP.PostSend(verbs.SendWR{ID: posted, Opcode: verbs.OpSend, SGL: []verbs.SGE{a.MR.SGE(0, 8)}}); err != nil {
					t.Fatal(err)
				}
				posted++
			}
			depth := []int{200, 100, 500, 63, 1000}[i%5]
			if err := b.RecvCQ.Resize(depth); err != nil || b.RecvCQ.Cap() < depth {
				t.Fatalf("to %d: %d, %v", depth, b.RecvCQ.Cap(), err)
			}
			for ; got < posted; got++ {
				if wc := poll(t, b.RecvCQ); wc.Err() != nil || wc.ID != got {
					t.Fatalf("%+v, want of %d", wc, got)
				}
				if wc := poll(t, a.SendCQ); wc.Err() != nil || wc.ID != got {
					t.Fatalf("%+v, want of %d", wc, got)
				}
			}
		}
	})
}

// TestEventsOfCompletions waits for completions, all of them or solicited ones only.
func TestEventsOfCompletions(t *testing.T) {
	kinds(t, func(t *testing.T) {
		a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{Events: true})
		ctx := labtest.Within(t, time.Minute)
		for i := range labtest.Rounds(200, 50) {
			for _, solicited := range []bool{false, true} {
				for range 2 {
					if _, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 8)}}); err != nil {
						t.Fatal(err)
					}
				}
				if err := b.RecvCQ.Arm(solicited); err != nil {
					t.Fatal(err)
				}
				wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{a.MR.SGE(0, 8)}}
				last := wr
				last.Flags |= verbs.SendSolicited
				if _, err := a.QP.PostSend(wr, last); err != nil {
					t.Fatal(err)
				}
				if err := b.RecvCQ.Wait(ctx); err != nil {
					t.Fatalf("round %d, solicited only %v: %v", i, solicited, err)
				}
				for range 2 {
					if wc := poll(t, b.RecvCQ); wc.Err() != nil {
						t.Fatal(wc.Err())
					}
					if wc := poll(t, a.SendCQ); wc.Err() != nil {
						t.Fatal(wc.Err())
					}
				}
			}
		}
	})
}

// vendorError reports whether the error of a completion has a vendor error, in its text as well.
func vendorError(wc verbs.WC, want uint32) bool {
	var e *verbs.WCError
	return errors.As(wc.Err(), &e) && e.VendorErr == want && strings.Contains(e.Error(), fmt.Sprintf("%#x", want))
}

// TestFailedRequests checks that a request to memory that is not the peer's fails, and those after
// it are flushed, on both sides, with the adapter's vendor errors, and that the QPs can be reset
// and used again.
func TestFailedRequests(t *testing.T) {
	kinds(t, func(t *testing.T) {
		a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{All: true})
		for range 3 {
			if _, err := b.PostRecv(verbs.RecvWR{ID: 9}); err != nil {
				t.Fatal(err)
			}
			write := verbs.SendWR{ID: 1, Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{a.MR.SGE(0, 8)}, RemoteAddr: b.MR.Addr(), RKey: b.MR.RKey() ^ 0x5500}
			if _, err := a.QP.PostSend(write, verbs.SendWR{ID: 2, Opcode: verbs.OpSend}); err != nil {
				t.Fatal(err)
			}
			if wc := poll(t, a.SendCQ); wc.ID != 1 || wc.Status != verbs.WCRemAccessErr || !vendorError(wc, 0x88) {
				t.Fatalf("%+v", wc)
			}
			if wc := poll(t, a.SendCQ); wc.ID != 2 || wc.Status != verbs.WCFlushErr || !vendorError(wc, 0xf9) {
				t.Fatalf("%+v", wc)
			}
			if _, err := a.QP.PostSend(verbs.SendWR{ID: 3, Opcode: verbs.OpSend}); err != nil {
				t.Fatal(err)
			}
			if wc := poll(t, a.SendCQ); wc.ID != 3 || wc.Status != verbs.WCFlushErr {
				t.Fatalf("%+v", wc)
			}
			if wc := poll(t, b.RecvCQ); wc.ID != 9 || wc.Status != verbs.WCFlushErr || !vendorError(wc, 0xf9) {
				t.Fatalf("%+v", wc)
			}
			for _, s := range []*rdmatest.Endpoint{a, b} {
				labtest.Check(t, s.QP.Modify(verbs.QPAttr{State: verbs.StateReset}, verbs.MaskState))
			}
			ea, eb := labtest.Must(a.QP.Addr(1))(t), labtest.Must(b.QP.Addr(1))(t)
			rights := uverbs.ConnectOptions{Access: verbs.AccessAll}
			labtest.Check(t, a.QP.Connect(ea, eb, rights), b.QP.Connect(eb, ea, rights))
			x := &transfer{t: t, a: a, b: b, typ: verbs.RC, rand: rand.New(rand.NewPCG(1, 2))}
			for range 20 {
				x.next()
			}
		}
	})
}

// TestQueuesFull fills the queues to their last request.
func TestQueuesFull(t *testing.T) {
	kinds(t, func(t *testing.T) {
		a, b := labtest.NewPair(t, labtest.MLX5, rdmatest.PairOptions{Cap: verbs.QPCap{MaxSendWR: 30, MaxRecvWR: 30, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInline: 200}})
		for range 20 {
			recvs, sends := 0, 0
			for {
				n, err := b.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{b.MR.SGE(0, 200)}})
				if recvs += n; errors.Is(err, verbs.ErrQueueFull) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			for recvs > sends {
				wr := verbs.SendWR{ID: uint64(sends), Opcode: verbs.OpSend, Inline: bytes.Repeat([]byte{byte(sends)}, 200)}
				if sends == recvs-1 || sends == a.QP.Cap().MaxSendWR-1 {
					wr.Flags = verbs.SendSignaled
				}
				n, err := a.QP.PostSend(wr)
				if sends += n; errors.Is(err, verbs.ErrQueueFull) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if recvs < 30 || sends < 30 {
				t.Fatalf("%d receives, %d sends", recvs, sends)
			}
			if wc := poll(t, a.SendCQ); wc.Err() != nil || int(wc.ID) != sends-1 {
				t.Fatalf("%+v", wc)
			}
			for range sends {
				if wc := poll(t, b.RecvCQ); wc.Err() != nil || wc.ByteLen != 200 {
					t.Fatalf("%+v", wc)
				}
			}
		}
	})
}

// TestResizeSRQ shows that the kernel refuses to resize an SRQ.
func TestResizeSRQ(t *testing.T) {
	kinds(t, func(t *testing.T) {
		pd := labtest.Made(labtest.OpenDevice(t, labtest.MLX5).AllocPD())(t)
		srq := labtest.Made(pd.CreateSRQ(uverbs.SRQOptions{MaxWR: 8}))(t)
		if err := srq.Resize(16); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v, want a refusal that matches errors.ErrUnsupported", err)
		}
	})
}
