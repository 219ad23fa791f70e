package uverbs

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// fakeSendQueue is a send queue of a driver that is not built in. It records its requests.
type fakeSendQueue struct {
	provider.SendQueue
	got []verbs.SendWR
}

func (q *fakeSendQueue) Post(wrs []verbs.SendWR) (int, error) {
	q.got = wrs
	return len(wrs), nil
}

// TestCopies posts requests with all fields set to a driver that is not built in: it gets
// all of them, in memory other than the caller's.
func TestCopies(t *testing.T) {
	full := verbs.SendWR{
		ID: 1, Opcode: verbs.OpBindMW, Flags: verbs.SendSignaled, Imm: 2, RemoteAddr: 3, RKey: 4, InvalidateRKey: 5,
		SGL: []verbs.SGE{{Addr: 6, Length: 7, LKey: 8}, {Addr: 9}}, CompareAdd: 10, Swap: 11,
		To:     verbs.UDAddr{AH: 12, QPNum: 13, QKey: 14},
		Bind:   &verbs.MWBind{RKey: 15, NewRKey: 16, LKey: 17, Addr: 18, Length: 19, Access: verbs.AccessRemoteRead},
		Flush:  verbs.Flush{Length: 20, Type: verbs.FlushGlobal, Level: verbs.FlushMR},
		Inline: []byte("in"), InlineList: [][]byte{[]byte("li"), nil, []byte("ne")},
	}
	for f, v := range reflect.ValueOf(full).Fields() {
		if v.IsZero() {
			t.Errorf("%s is not tested", f.Name)
		}
	}
	want := full
	want.Inline, want.InlineList = []byte("inline"), nil
	q := new(fakeSendQueue)
	qp := &QP{send: newSendQueue(q)}
	for _, count := range []int{1, 40, 3} { // the memory of earlier calls is used again
		wrs, wants := slices.Repeat([]verbs.SendWR{full, {ID: 21}}, count), slices.Repeat([]verbs.SendWR{want, {ID: 21}}, count)
		if n, err := qp.PostSend(wrs...); n != 2*count || err != nil {
			t.Fatal(n, err)
		}
		if !reflect.DeepEqual(q.got, wants) {
			t.Fatalf("got %+v, want %+v", q.got, wants)
		}
		if &wrs[0] == &q.got[0] || &wrs[0].SGL[0] == &q.got[0].SGL[0] || wrs[0].Bind == q.got[0].Bind {
			t.Error("the driver got the caller's memory")
		}
	}
}

// TestCopiesRecv is TestCopies for receives.
func TestCopiesRecv(t *testing.T) {
	var b batch
	wrs := []verbs.RecvWR{{ID: 1, SGL: []verbs.SGE{{Addr: 2, Length: 3, LKey: 4}}}, {ID: 5}, {ID: 6, SGL: []verbs.SGE{{Addr: 7}, {Addr: 8}}}}
	if got := b.copyRecv(wrs); !reflect.DeepEqual(got, wrs) {
		t.Errorf("got %+v, want %+v", got, wrs)
	}
}

// fakeCQ returns numbered completions.
type fakeCQ struct {
	provider.CompletionQueue
	next, end uint64
	most      int // in one call
}

func (q *fakeCQ) Poll(wcs []verbs.WC) (n int) {
	q.most = max(q.most, len(wcs))
	for ; n < len(wcs) && q.next < q.end; n++ {
		wcs[n] = verbs.WC{ID: q.next}
		q.next++
	}
	return n
}

// TestPollExternal polls a CQ of a driver that is not built in.
func TestPollExternal(t *testing.T) {
	for _, c := range []struct{ have, room, want int }{{0, 8, 0}, {5, 8, 5}, {8, 8, 8}, {100, 32, 32}, {100, 33, 33}, {200, 150, 150}, {64, 150, 64}, {5, 0, 0}} {
		q := &fakeCQ{end: uint64(c.have)}
		wcs := make([]verbs.WC, c.room)
		if n := (&CQ{queue: newCompletionQueue(q)}).Poll(wcs); n != c.want {
			t.Errorf("polled %d of %d into %d", n, c.have, c.room)
		}
		for i := range wcs[:c.want] {
			if wcs[i].ID != uint64(i) {
				t.Fatalf("completion %d is %d", i, wcs[i].ID)
			}
		}
	}
}

// BenchmarkExternal measures the cost of a driver that is not built in: the copies. The
// benchmarks of provider/rxe and provider/siw measure the built-in ones.
func BenchmarkExternal(b *testing.B) {
	sgl := []verbs.SGE{{Addr: 1, Length: 2, LKey: 3}}
	for _, n := range []int{1, 16} {
		qp := &QP{send: newSendQueue(new(fakeSendQueue))}
		for what, wr := range map[string]verbs.SendWR{
			"SGL":    {ID: 1, Opcode: verbs.OpSend, SGL: sgl},
			"inline": {ID: 1, Opcode: verbs.OpSend, Inline: make([]byte, 64)},
		} {
			wrs := slices.Repeat([]verbs.SendWR{wr}, n)
			b.Run(fmt.Sprintf("post/%s/%d", what, n), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					qp.PostSend(wrs...)
				}
			})
		}
		b.Run(fmt.Sprintf("poll/%d", n), func(b *testing.B) {
			q := &fakeCQ{}
			cq := &CQ{queue: newCompletionQueue(q)}
			b.ReportAllocs()
			for b.Loop() {
				q.end += uint64(n)
				var wcs [16]verbs.WC
				cq.Poll(wcs[:])
			}
		})
	}
}

// TestNoDriver opens devices without a driver.
func TestNoDriver(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs RDMA in the kernel: run by make test, or with go test -exec build/lab")
	}
	defer func(all []provider.Driver) { builtin = all }(builtin)
	builtin = builtin[1:]
	_, err := Open("rxe0")
	if !errors.Is(err, verbs.ErrNoDriver) || !errors.Is(err, verbs.ErrNoRDMA) {
		t.Fatal(err)
	}
	if text := err.Error(); !strings.Contains(text, "rdma_driver_id is 14 (rxe)") || !strings.Contains(text, "drivers for siw") {
		t.Error(text)
	}
	builtin = nil
	if _, err := Open("siw0"); err == nil || !strings.Contains(err.Error(), "18 (siw), there are no drivers") {
		t.Error(err)
	}
}
