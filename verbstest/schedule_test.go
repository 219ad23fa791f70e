package verbstest

import (
	"net/netip"
	"testing"
	"time"
)

// TestDecide decides about a packet that was sent at 10 ms, in a flow whose last packet arrives at
// 20 ms.
func TestDecide(t *testing.T) {
	const ms = time.Millisecond
	all := Link{Delay: 30 * ms, Jitter: 10 * ms, Loss: .5, Duplicate: .5, Corrupt: .5, Reorder: .5}
	high := chances{.5, .5, .5, .5, 0, 7} // nothing happens
	with := func(change func(c *chances)) chances {
		c := high
		change(&c)
		return c
	}
	for name, c := range map[string]struct {
		link    Link
		act     Action
		chances chances
		step    time.Duration
		want    verdict
		last    time.Duration // after it
	}{
		"in order":        {want: verdict{due: 20 * ms}, last: 20 * ms},
		"delay":           {link: all, want: verdict{due: 40 * ms}, last: 40 * ms},
		"jitter":          {link: all, chances: with(func(c *chances) { c.jitter = .5 }), want: verdict{due: 45 * ms}, last: 45 * ms},
		"step":            {link: all, step: ms, want: verdict{due: 40 * ms}, last: 40 * ms},
		"long step":       {link: Link{Delay: 5 * ms}, step: 15 * ms, want: verdict{due: 25 * ms}, last: 25 * ms},
		"loss":            {link: all, chances: with(func(c *chances) { c.loss = .49 }), want: verdict{drop: "loss"}, last: 20 * ms},
		"duplicate":       {link: all, chances: with(func(c *chances) { c.duplicate = .49 }), want: verdict{due: 40 * ms, copies: 1}, last: 40 * ms},
		"duplicate twice": {link: all, act: Action{Copies: 1}, chances: with(func(c *chances) { c.duplicate = .49 }), want: verdict{due: 40 * ms, copies: 2}, last: 40 * ms},
		"corrupt":         {link: all, chances: with(func(c *chances) { c.corrupt = .49 }), want: verdict{due: 40 * ms, corrupt: true}, last: 40 * ms},
		"corrupt by act":  {act: Action{Corrupt: true}, want: verdict{due: 20 * ms, corrupt: true}, last: 20 * ms},
		"reorder": {link: all, chances: with(func(c *chances) { c.reorder = .49 }),
			want: verdict{due: 40*ms + ReorderDelay, overtaken: ReorderDelay, reordered: true}, last: 20 * ms},
		"delay by act":    {act: Action{Delay: ms}, want: verdict{due: 21 * ms, overtaken: ms}, last: 20 * ms},
		"bandwidth":       {link: Link{Bandwidth: 8 * 1000 * 128}, want: verdict{due: 20 * ms}, last: 20 * ms}, // 1 ms for 128 bytes
		"small bandwidth": {link: Link{Bandwidth: 8 * 1000}, want: verdict{due: 138 * ms}, last: 138 * ms},
	} {
		if c.chances == (chances{}) {
			c.chances = high
		}
		if c.want.drop == "" {
			c.want.bit = 7
		}
		pk := &packet{header: header{sent: 10 * ms, dst: netip.AddrPortFrom(addrB, 4791), data: make([]byte, 100)}}
		f := &flow{last: 20 * ms}
		if got := f.decide(c.link, c.act, c.chances, pk, pk.sent+c.step, c.step); got != c.want || f.last != c.last {
			t.Errorf("%s: %+v, want %+v; last %v, want %v", name, got, c.want, f.last, c.last)
		}
	}

	f, l, pk := &flow{}, Link{Bandwidth: 8 * 1000, Queue: 1}, &packet{header: header{dst: netip.AddrPortFrom(addrB, 4791)}}
	for i, want := range []string{"", "", "link queue is full"} {
		if got := f.decide(l, Pass, high, pk, 0, 0); got.drop != want {
			t.Errorf("packet %d: dropped %q, want %q", i, got.drop, want)
		}
	}
}
