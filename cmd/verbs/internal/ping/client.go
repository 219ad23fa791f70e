package ping

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/cmd/verbs/internal/latency"
	"github.com/goverbs/verbs/uverbs"
)

func (c *Cmd) client(ctx context.Context, addr string) (err error) {
	p := &peer{debug: c.Debug}
	d := cm.Dialer{Options: p.options(), LocalAddr: netip.AddrPortFrom(c.Source, 0), TOS: c.TOS}
	if _, err := d.Dial(ctx, addr); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	p.debugf("connected %v to %v", p.LocalAddr(), p.RemoteAddr())
	back, err := p.allocData()
	if err != nil {
		return err
	}
	r := newResult("client", p)
	r.Size, r.Validated, r.histogram = int(c.Size), c.Check, latency.New()
	for c.Count == 0 || r.Count < c.Count {
		err := c.round(ctx, p, back, r)
		if ctx.Err() != nil && c.Count == 0 {
			break // interrupted, which ends a run without a count
		}
		if err != nil {
			return fmt.Errorf("round %d: %w", r.Count, err)
		}
	}
	return r.print(c.JSON)
}

// round sends the data and receives it back.
func (c *Cmd) round(ctx context.Context, p *peer, back *uverbs.MR, r *result) error {
	out, in := p.data.Bytes()[:c.Size], back.Bytes()[:c.Size]
	fill(out, r.Count)
	start := time.Now()
	for _, mr := range []*uverbs.MR{p.data, back} {
		if err := p.send(ctx, mr, int(c.Size)); err != nil {
			return err
		}
		if _, err := p.receive(ctx); err != nil {
			return err
		}
	}
	r.histogram.Record(time.Since(start))
	if c.Check && !bytes.Equal(out, in) {
		return errors.New("data that came back differs")
	}
	c.printData("ping data", in)
	r.Count++
	return nil
}

// text returns b up to its first zero byte.
func text(b []byte) []byte {
	b, _, _ = bytes.Cut(b, []byte{0})
	return b
}

// fill writes the text of a round as rping does, zero-terminated.
func fill(b []byte, round int) {
	const first, last = 'A', 'z'
	n := copy(b, "rdma-ping-"+strconv.Itoa(round)+": ")
	ch := first + round%(last-first+1)
	for i := n; i < len(b); i++ {
		b[i] = byte(ch)
		if ch++; ch > last {
			ch = first
		}
	}
	b[len(b)-1] = 0
}
