//go:build linux

package mlx5

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// list returns the segments of a receive at p, as the device reads them, behind off bytes of
// stride.
func list(p unsafe.Pointer, off, stride int) (sgl []verbs.SGE) {
	for ; off < stride; off += segmentSize {
		b := unsafe.Slice((*byte)(unsafe.Add(p, off)), segmentSize)
		s := verbs.SGE{Addr: be.Uint64(b[8:]), Length: be.Uint32(b), LKey: be.Uint32(b[4:])}
		if s == endOfList {
			break
		}
		sgl = append(sgl, s)
	}
	return sgl
}

// TestReceives fills a receive queue with lists of all lengths, and completes them in order.
func TestReceives(t *testing.T) {
	f := newFake(t, Driver{})
	cq := f.cq(t, 64)
	p := f.qp(t, verbs.RC, cq, verbs.QPCap{MaxRecvWR: 16, MaxRecvSGE: 4}, nil)
	q := p.recv
	sgl := []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}, {Addr: 1 << 63, Length: 1<<31 - 1, LKey: 1<<32 - 1}, {Addr: 9, Length: 1, LKey: 9}, {Addr: 8, Length: 4, LKey: 6}}
	q.MaxMessage = 1 << 32
	var id uint64
	for range 10 {
		wrs := make([]verbs.RecvWR, 20)
		for i := range wrs {
			wrs[i] = verbs.RecvWR{ID: id + uint64(i), SGL: sgl[:i%5]}
			if i%5 == 4 { // an empty one is left out
				wrs[i].SGL = slices.Insert(slices.Clone(sgl[:3]), i%3, verbs.SGE{LKey: 5})
			}
		}
		head := q.head.Load()
		n, err := q.Post(wrs)
		if n != 16 || n != q.Cap() || err != verbs.ErrQueueFull || swap32(q.record.Load()) != (head+16)&0xffff {
			t.Fatal(n, err, swap32(q.record.Load()))
		}
		for i := range uint32(16) {
			want := slices.DeleteFunc(slices.Clone(wrs[i].SGL), func(s verbs.SGE) bool { return s.Length == 0 })
			if got := list(unsafe.Add(q.base, uintptr((head+i)&q.mask)*q.stride), 0, int(q.stride)); !slices.Equal(got, want) {
				t.Fatalf("receive %d: %+v, want %+v", i, got, want)
			}
			e := completion(p, uint16(head+i))
			be.PutUint32(e[cqeByteCount:], 100+i)
			cq.put(e, cqeSend)
		}
		for i, wc := range cq.poll() {
			if wc != (verbs.WC{ID: id, Opcode: verbs.WCRecv, ByteLen: 100 + uint32(i), QPNum: fakeQPN}) {
				t.Fatalf("completion %d: %+v", id, wc)
			}
			id++
		}
	}
	if id != 160 {
		t.Fatal(id)
	}
	for _, bad := range []struct {
		sgl  []verbs.SGE
		want error
	}{{make([]verbs.SGE, 5), verbs.ErrTooManySGEs}, {[]verbs.SGE{{Length: 1 << 31}}, verbs.ErrMessageTooLong}, {[]verbs.SGE{sgl[1], sgl[1], sgl[1]}, verbs.ErrMessageTooLong}} {
		if n, err := q.Post([]verbs.RecvWR{{}, {SGL: bad.sgl}}); n != 1 || !errors.Is(err, bad.want) {
			t.Errorf("%d posted, %v, want %v", n, err, bad.want)
		}
	}
}

// TestSharedReceives posts to an SRQ and completes receives of two QPs in any order, as a device
// that follows the list does: no receive is lost, and none is posted that is in flight.
func TestSharedReceives(t *testing.T) {
	for _, most := range []int{1, 7, 100} {
		f := newFake(t, Driver{})
		cq := f.cq(t, 256)
		q := f.srq(t, most, 3)
		a := f.qp(t, verbs.RC, cq, verbs.QPCap{}, q)
		b := f.qp(t, verbs.RC, cq, verbs.QPCap{}, q)
		if q.Cap() < most || q.Cap() != provider.RoundUp(most+1)-1 || q.stride != 64 {
			t.Fatalf("room for %d of %d, stride %d", q.Cap(), most, q.stride)
		}
		r := rand.New(rand.NewPCG(uint64(most), 5))
		var at, taken uint16 // the device's place in the list, and how many it has taken
		flying := map[uint64]uint16{}
		var id, done uint64
		for range 2000 {
			wrs := make([]verbs.RecvWR, r.IntN(most)+1)
			for i := range wrs {
				wrs[i] = verbs.RecvWR{ID: id + uint64(i), SGL: []verbs.SGE{{Addr: id + uint64(i), Length: 1, LKey: 2}}}
			}
			n, err := q.Post(wrs)
			if room := q.Cap() - len(flying); n != min(room, len(wrs)) || (err != nil) != (n < len(wrs)) || err != nil && err != verbs.ErrQueueFull {
				t.Fatalf("posted %d, with room for %d: %v", n, room, err)
			}
			for range n {
				p := q.entry(uint32(at))
				if got := list(p, srqNextSize, int(q.stride)); len(got) != 1 || got[0].Addr != id {
					t.Fatalf("receive %d at %d: %+v", id, at, got)
				}
				flying[id] = at
				id, taken, at = id+1, taken+1, uint16(q.following(uint32(at)))
			}
			if uint16(swap32(q.record.Load())) != taken {
				t.Fatalf("record %d, want %d", swap32(q.record.Load()), taken)
			}
			var order []uint64
			for k := range flying {
				order = append(order, k)
			}
			slices.Sort(order)
			r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
			order = order[:r.IntN(len(order)+1)]
			for _, k := range order {
				cq.put(completion([]*queuePair{a, b}[k%2], flying[k]), cqeSend)
				delete(flying, k)
			}
			wcs := cq.poll()
			if len(wcs) != len(order) {
				t.Fatalf("%d completions, not %d", len(wcs), len(order))
			}
			for i, wc := range wcs {
				if wc.ID != order[i] || wc.Opcode != verbs.WCRecv {
					t.Fatalf("completion %+v, want of %d", wc, order[i])
				}
				done++
			}
		}
		if done == 0 {
			t.Fatal("nothing completed")
		}
		// Completions that are not drained, when a QP is destroyed, give their receives back.
		cqe := 0
		for _, i := range flying {
			cq.put(completion(a, i), cqeReceiveErr)
			cqe++
		}
		a.clean()
		if wcs := cq.poll(); len(wcs) != 0 {
			t.Fatalf("%d completions of a QP that is gone", len(wcs))
		}
		if n, err := q.Post(make([]verbs.RecvWR, q.Cap())); n != q.Cap() || err != nil {
			t.Fatalf("of %d receives %d posted after %d were given back: %v", q.Cap(), n, cqe, err)
		}
	}
}

// BenchmarkPostRecv posts receives.
func BenchmarkPostRecv(b *testing.B) {
	for _, n := range []int{1, 16} {
		b.Run([]string{1: "1", 16: "16"}[n], func(b *testing.B) {
			f := newFake(b, Driver{})
			q := f.qp(b, verbs.RC, f.cq(b, 8), verbs.QPCap{MaxRecvWR: 256, MaxRecvSGE: 1}, nil).recv
			wrs := slices.Repeat([]verbs.RecvWR{{SGL: []verbs.SGE{{Length: 1}}}}, n)
			b.ReportAllocs()
			for b.Loop() {
				if got, err := q.Post(wrs); got != n || err != nil {
					b.Fatal(got, err)
				}
				q.tail.Store(q.head.Load())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/request")
		})
	}
}
