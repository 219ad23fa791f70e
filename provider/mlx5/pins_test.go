//go:build linux

package mlx5

import (
	"os"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
)

// TestPins: the kernel's request states the locked memory that a queue takes: whole pages, and one
// of doorbell records.
func TestPins(t *testing.T) {
	f := newFake(t, Driver{})
	page := os.Getpagesize()
	round := func(n int) int { return (n+page-1)/page*page + page }
	cq := f.cq(t, 10)
	var got int
	note := func(u provider.UHW) error { got = u.Pins; return nil }
	for _, test := range []struct {
		what string
		make func() (provider.Queue, error)
		want int
	}{
		{"CQ of 127", func() (provider.Queue, error) {
			return f.CreateCQ(&provider.CQInit{Depth: 127}, func(u provider.UHW) (provider.CQInfo, error) { return provider.CQInfo{}, note(u) })
		}, round(128 * 64)},
		{"CQ of 128", func() (provider.Queue, error) {
			return f.CreateCQ(&provider.CQInit{Depth: 128}, func(u provider.UHW) (provider.CQInfo, error) { return provider.CQInfo{}, note(u) })
		}, round(256 * 64)},
		{"SRQ", func() (provider.Queue, error) {
			return f.CreateSRQ(&provider.SRQInit{MaxWR: 300, MaxSGE: 2}, func(u provider.UHW) (provider.SRQInfo, error) { return provider.SRQInfo{}, note(u) })
		}, round(512 * 64)},
		{"QP without receives", func() (provider.Queue, error) {
			s, r, err := f.CreateQP(&provider.QPInit{
				Type: verbs.RC, Cap: verbs.QPCap{MaxSendWR: 126, MaxSendSGE: 1, MaxInline: 64}, SendCQ: cq.completionQueue, RecvCQ: cq.completionQueue,
			}, func(u provider.UHW) (provider.QPInfo, error) { return provider.QPInfo{}, note(u) })
			if r != nil {
				r.Release()
			}
			return s, err
		}, round(256 * 64)},
		{"size of CQ", func() (provider.Queue, error) {
			err := cq.Resize(1000, func(_ int, u provider.UHW) error { note(u); return os.ErrInvalid })
			if err != os.ErrInvalid {
				t.Error(err)
			}
			return nil, nil
		}, round(1024 * 64)},
	} {
		q, err := test.make()
		if err != nil {
			t.Fatal(err)
		}
		if q != nil {
			q.Release()
		}
		if got != test.want {
			t.Errorf("%s pins %d bytes, want %d", test.what, got, test.want)
		}
	}
}
