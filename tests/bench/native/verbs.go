//go:build !bench_cgo

package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
)

// pair is a connected pair, with the requests to post.
type pair struct {
	client, server *cm.Endpoint
	sendWRs        [most]verbs.SendWR
	recvWRs        [most]verbs.RecvWR
	sendBatch      []verbs.SendWR
	recvBatch      []verbs.RecvWR
	wcs            [most]verbs.WC
}

func connect(addr, port string) (*pair, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	opt := cm.Options{Polled: true, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1}}
	addr = net.JoinHostPort(addr, port)
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	p := new(pair)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			p.server, err = r.Accept(ctx, opt)
		}
		accepted <- err
	}()
	p.client, err = (&cm.Dialer{Options: opt}).Dial(ctx, addr)
	if err := errors.Join(err, <-accepted); err != nil {
		return nil, err
	}
	from, err := p.client.AllocMR(size, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	to, err := p.server.AllocMR(size, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	for i := range most {
		p.sendWRs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{from.SGE(0, size)}}
		p.recvWRs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{to.SGE(0, size)}}
	}
	return p, nil
}

// batchSends makes postSends post n requests at a time.
func (p *pair) batchSends(n int) { p.sendBatch = p.sendWRs[:n] }

// postSends posts n batches.
func (p *pair) postSends(n int) error {
	qp, wrs := p.client.QP, p.sendBatch
	for range n {
		if _, err := qp.PostSend(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) batchRecvs(n int) { p.recvBatch = p.recvWRs[:n] }

func (p *pair) postRecvs(n int) error {
	qp, wrs := p.server.QP, p.recvBatch
	for range n {
		if _, err := qp.PostRecv(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (p *pair) pollSend(n int) int { return p.client.SendCQ.Poll(p.wcs[:n]) }
func (p *pair) pollRecv(n int) int { return p.server.RecvCQ.Poll(p.wcs[:n]) }

// pollRecvs polls the completions of receives in batches until one is not full.
func (p *pair) pollRecvs(batch int) (n int) {
	wcs := p.wcs[:batch]
	for n < work {
		got := p.server.RecvCQ.Poll(wcs)
		n += got
		if got < batch {
			return n
		}
	}
	return n
}

// pollEmpty polls the server's CQ as often as it had completions.
func (p *pair) pollEmpty() (n int) {
	for range work {
		n += p.server.RecvCQ.Poll(p.wcs[:1])
	}
	return n
}

// check returns an error if one of the first n completions polled last has failed.
func (p *pair) check(n int) error {
	for i := range p.wcs[:n] {
		if err := p.wcs[i].Err(); err != nil {
			return err
		}
	}
	return nil
}
