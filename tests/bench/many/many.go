package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

const (
	size    = 64
	queue   = 16    // requests of a QP, in each direction
	recvs   = 2     // receives of a connection
	period  = 8     // one request in period is signaled
	batch   = 16    // completions polled at a time
	cqDepth = 20000 // more than enough: C's library requires it

	ask, over = 1, 2 // bytes of a message that requests the server's report, or that is the last
)

type report struct {
	Messages, Bytes uint64
	Kilobytes       int64
}

// many holds all connections of a side.
type many struct {
	pd    *uverbs.PD
	ch    *uverbs.CompChannel
	cq    *uverbs.CQ
	mr    *uverbs.MR // size bytes in, and as many out, of each connection
	conns []conn
	recv  [1]verbs.RecvWR // the request to post, on any connection
	send  [1]verbs.SendWR
	got   report
}

type conn struct {
	*cm.Endpoint
	posted uint32
}

// setUp creates the objects that the connections share, on the device with an address.
func setUp(ctx context.Context, host string) (*many, error) {
	path, err := cm.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	dev, err := path.Device.Open()
	if err != nil {
		return nil, err
	}
	m := &many{
		recv: [1]verbs.RecvWR{{SGL: make([]verbs.SGE, 1)}},
		send: [1]verbs.SendWR{{Opcode: verbs.OpSend, SGL: make([]verbs.SGE, 1)}},
	}
	if m.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	if m.ch, err = dev.CreateCompChannel(); err != nil {
		return nil, err
	}
	m.cq, err = dev.CreateCQ(uverbs.CQOptions{Depth: cqDepth, Channel: m.ch})
	return m, err
}

// allocMemory allocates the memory of the connections.
func (m *many) allocMemory(conns uint32) (err error) {
	m.conns = make([]conn, conns)
	m.mr, err = m.pd.AllocMR(int(conns)*2*size, verbs.AccessLocalWrite, uverbs.MROptions{})
	return err
}

const in, out = 0, 1

func (m *many) part(i uint32, way int) []byte { return m.mr.Bytes()[(int(i)*2+way)*size:][:size] }

func (m *many) sge(i uint32, way, n int) verbs.SGE { return m.mr.SGE((int(i)*2+way)*size, n) }

// options returns the options of connection i.
func (m *many) options(i uint32) cm.Options {
	private := binary.NativeEndian.AppendUint32(nil, uint32(len(m.conns)))
	return cm.Options{
		PD: m.pd, SendCQ: m.cq, RecvCQ: m.cq, PrivateData: private,
		Cap: verbs.QPCap{MaxSendWR: queue, MaxRecvWR: queue, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1},
		Setup: func(e *cm.Endpoint) error {
			m.conns[i].Endpoint = e
			for range recvs {
				if err := m.postRecv(i); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (m *many) postRecv(i uint32) error {
	wr := &m.recv[0]
	wr.ID, wr.SGL[0] = uint64(i), m.sge(i, in, size)
	_, err := m.conns[i].QP.PostRecv(m.recv[:]...)
	return err
}

func (m *many) postSend(i uint32, n int) error {
	c, wr := &m.conns[i], &m.send[0]
	wr.ID, wr.SGL[0], wr.Flags = uint64(i), m.sge(i, out, n), 0
	if c.posted++; c.posted%period == 0 {
		wr.Flags = verbs.SendSignaled
	}
	_, err := c.QP.PostSend(m.send[:]...)
	return err
}

// echo answers each message on its connection, as long as there are more to send. It
// returns when n messages have been received, or one that is not an echo, and returns the
// size of the last.
func (m *many) echo(n, more uint64) (last int, err error) {
	var wcs [batch]verbs.WC
	for m.got.Messages < n {
		polled, err := m.await(wcs[:])
		if err != nil {
			return 0, err
		}
		for i := range wcs[:polled] {
			wc := &wcs[i]
			if err := wc.Err(); err != nil {
				return 0, fmt.Errorf("connection %d: %w (%v)", wc.ID, err, m.conns[wc.ID].Err())
			}
			if wc.Opcode != verbs.WCRecv {
				continue
			}
			if err := m.postRecv(uint32(wc.ID)); err != nil {
				return 0, err
			}
			if wc.ByteLen != size {
				return int(wc.ByteLen), nil
			}
			m.got.Messages++
			m.got.Bytes += size
			if more > 0 {
				more--
				if err := m.postSend(uint32(wc.ID), size); err != nil {
					return 0, err
				}
			}
		}
	}
	return size, nil
}

// await polls completions, and sleeps until there are any.
func (m *many) await(wcs []verbs.WC) (n int, err error) {
	for armed := false; ; armed = !armed {
		if n := m.cq.Poll(wcs); n > 0 {
			return n, nil
		}
		if !armed {
			err = m.cq.Arm(false)
		} else {
			_, err = m.ch.Sleep(context.Background(), time.Time{})
		}
		if err != nil {
			return 0, err
		}
	}
}
