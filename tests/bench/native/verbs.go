//go:build !bench_cgo

package main

import (
	"context"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/endpoint"
	"github.com/goverbs/verbs/uverbs"
)

// connection has both ends, with the requests to post.
type connection struct {
	client, server *endpoint.Local
	sendWRs        [most]verbs.SendWR
	recvWRs        [most]verbs.RecvWR
	sendBatch      []verbs.SendWR
	recvBatch      []verbs.RecvWR
	wcs            [most]verbs.WC
}

// connect connects at an address. The port is for C.
func connect(addr, _ string) (*connection, error) {
	dev, err := uverbs.Open(addr)
	if err != nil {
		return nil, err
	}
	opt := endpoint.Options{Depth: depth, Memory: size, Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1}}
	p := new(connection)
	if p.client, err = endpoint.New(endpoint.Port{Dev: dev}, opt); err != nil {
		return nil, err
	}
	if p.server, err = endpoint.New(endpoint.Port{Dev: dev}, opt); err != nil {
		return nil, err
	}
	if err := endpoint.Join(context.Background(), p.client, p.server); err != nil {
		return nil, err
	}
	for i := range most {
		p.sendWRs[i] = verbs.SendWR{ID: uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{p.client.MR.SGE(0, size)}}
		p.recvWRs[i] = verbs.RecvWR{ID: uint64(i), SGL: []verbs.SGE{p.server.MR.SGE(0, size)}}
	}
	return p, nil
}

// batchSends makes postSends post n requests at a time.
func (p *connection) batchSends(n int) { p.sendBatch = p.sendWRs[:n] }

// postSends posts n batches.
func (p *connection) postSends(n int) error {
	qp, wrs := p.client.QP, p.sendBatch
	for range n {
		if _, err := qp.PostSend(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (p *connection) batchRecvs(n int) { p.recvBatch = p.recvWRs[:n] }

func (p *connection) postRecvs(n int) error {
	qp, wrs := p.server.QP, p.recvBatch
	for range n {
		if _, err := qp.PostRecv(wrs...); err != nil {
			return err
		}
	}
	return nil
}

func (p *connection) pollSend(n int) int { return p.client.SendCQ.Poll(p.wcs[:n]) }
func (p *connection) pollRecv(n int) int { return p.server.RecvCQ.Poll(p.wcs[:n]) }

// pollRecvs polls the completions of receives in batches until one is not full.
func (p *connection) pollRecvs(batch int) (n int) {
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
func (p *connection) pollEmpty() (n int) {
	for range work {
		n += p.server.RecvCQ.Poll(p.wcs[:1])
	}
	return n
}

// check returns an error if one of the first n completions polled last has failed.
func (p *connection) check(n int) error {
	for i := range p.wcs[:n] {
		if err := p.wcs[i].Err(); err != nil {
			return err
		}
	}
	return nil
}
