// Command conns echoes messages on many connections concurrently with package uverbs,
// as c/conns.c does with libibverbs, and prints how long that took and how much memory
// the connections use. Both take the same arguments and print the same; the comments
// of the C program describe them.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"runtime/debug"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/uverbs"
)

const (
	size    = 64
	queue   = 16    // requests of a QP, in each direction
	recvs   = 2     // receives of a connection
	period  = 8     // one request in period is signaled
	batch   = 16    // completions polled at a time
	cqDepth = 20000 // more than enough: C's library requires it
)

func main() { self.Main("conns", "CONNS N WARM", serve, client) }

func client(addr string, args []string) error {
	var conns, n, warm int
	if err := self.Numbers(args, &conns, &n, &warm); err != nil {
		return err
	}
	ctx := context.Background()
	m, err := setUp(ctx, addr)
	if err != nil {
		return err
	}
	if err := m.allocMemory(conns); err != nil {
		return err
	}
	before := 0
	for i := range conns {
		d := cm.Dialer{Options: m.options(i)}
		if _, err := d.Dial(ctx, addr); err != nil {
			return err
		}
		if i > 0 {
			continue
		}
		if before, err = resident(); err != nil { // the first connection is the warm-up
			return err
		}
	}
	if err := m.messages(conns); err != nil {
		return err
	}
	after, err := resident()
	if err != nil {
		return err
	}
	return self.Again(func(out *bufio.Writer) error {
		if err := m.messages(warm); err != nil {
			return err
		}
		start := time.Now()
		err := m.messages(n)
		fmt.Fprintf(out, "messages %d\nnanoseconds %d\nkilobytes %d\n", n, time.Since(start), after-before)
		return err
	})
}

// serve serves one client until the standard input ends.
func serve(addr string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	m, err := setUp(ctx, addr)
	if err != nil {
		return err
	}
	self.Ready()
	for i := 0; i == 0 || i < len(m.conns); i++ {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := m.allocMemory(int(binary.NativeEndian.Uint32(r.PrivateData()))); err != nil {
				return err
			}
		}
		if _, err := r.Accept(ctx, m.options(i)); err != nil {
			return err
		}
	}
	err = m.echo(math.MaxInt, math.MaxInt)
	if _, ok := errors.AsType[*verbs.WCError](err); ok {
		select {} // The client has ended: it has checked its messages.
	}
	return err
}

// resident returns the process's resident memory in KiB, without garbage, which
// belongs to no connection.
func resident() (int, error) {
	debug.FreeOSMemory()
	return self.Resident()
}

// side holds all connections of a side.
type side struct {
	pd    *uverbs.PD
	ch    *uverbs.CompChannel
	cq    *uverbs.CQ
	mr    *uverbs.MR // size bytes in, and as many out, of each connection
	conns []conn
	recv  [1]verbs.RecvWR // the request to post, on any connection
	send  [1]verbs.SendWR
}

type conn struct {
	*cm.Endpoint
	posted int
}

// setUp creates the objects that the connections share, on the device with an address.
func setUp(ctx context.Context, addr string) (*side, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	path, err := cm.Lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	dev, err := path.Device.Open()
	if err != nil {
		return nil, err
	}
	m := &side{
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
func (m *side) allocMemory(conns int) (err error) {
	m.conns = make([]conn, conns)
	m.mr, err = m.pd.AllocMR(conns*2*size, verbs.AccessLocalWrite, uverbs.MROptions{})
	return err
}

// options returns the options of connection i.
func (m *side) options(i int) cm.Options {
	return cm.Options{
		PD: m.pd, SendCQ: m.cq, RecvCQ: m.cq, PrivateData: binary.NativeEndian.AppendUint32(nil, uint32(len(m.conns))),
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

func (m *side) postRecv(i int) error {
	wr := &m.recv[0]
	wr.ID, wr.SGL[0] = uint64(i), m.mr.SGE(2*i*size, size)
	_, err := m.conns[i].QP.PostRecv(m.recv[:]...)
	return err
}

func (m *side) postSend(i int) error {
	c, wr := &m.conns[i], &m.send[0]
	wr.ID, wr.SGL[0], wr.Flags = uint64(i), m.mr.SGE((2*i+1)*size, size), 0
	if c.posted++; c.posted%period == 0 {
		wr.Flags = verbs.SendSignaled
	}
	_, err := c.QP.PostSend(m.send[:]...)
	return err
}

// messages exchanges n messages there and back.
func (m *side) messages(n int) error {
	for i := range m.conns {
		if err := m.postSend(i); err != nil {
			return err
		}
	}
	return m.echo(n, n-len(m.conns))
}

// echo receives n messages, and answers each on its connection, as long as there are more
// to send.
func (m *side) echo(n, more int) error {
	var wcs [batch]verbs.WC
	for n > 0 {
		polled, err := m.await(wcs[:])
		if err != nil {
			return err
		}
		for i := range wcs[:polled] {
			wc := &wcs[i]
			if err := wc.Err(); err != nil {
				return fmt.Errorf("connection %d: %w (%v)", wc.ID, err, m.conns[wc.ID].Err())
			}
			if wc.Opcode != verbs.WCRecv {
				continue
			}
			if wc.ByteLen != size {
				return fmt.Errorf("connection %d: %d bytes", wc.ID, wc.ByteLen)
			}
			n--
			if err := m.postRecv(int(wc.ID)); err != nil {
				return err
			}
			if more > 0 {
				more--
				if err := m.postSend(int(wc.ID)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// await polls completions, and sleeps until there are any.
func (m *side) await(wcs []verbs.WC) (n int, err error) {
	for armed := false; ; armed = !armed {
		if n := m.cq.Poll(wcs); n > 0 {
			return n, nil
		}
		if !armed {
			err = m.cq.Arm(false)
		} else {
			err = m.cq.Wait(context.Background())
		}
		if err != nil {
			return 0, err
		}
	}
}
