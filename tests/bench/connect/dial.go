package main

import (
	"context"
	"errors"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

// dialConnector makes connections with Dial and Listen.
type dialConnector struct{}

func (dialConnector) serve(ctx context.Context, addr string, ready func(), torn *teardownNotifier) error {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	ready()
	for {
		r, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			if err := errors.Join(answer(ctx, r), torn.notify()); err != nil {
				log.Print("connect: ", err)
			}
		}()
	}
}

// answer accepts a connection and serves it until the peer closes it.
func answer(ctx context.Context, r *cm.Request) error {
	var m message
	opt := options
	echo := r.PrivateData()[0] != 0
	if echo {
		opt.Setup = m.prepare
	}
	e, err := r.Accept(ctx, opt)
	if err != nil {
		return nil // the peer has gone before the connection was established
	}
	if echo {
		err = m.receive()
		if err == nil {
			err = m.send()
		}
	}
	<-e.Done()
	return errors.Join(err, e.Close())
}

func (dialConnector) dial(w work) ([]time.Duration, error) {
	took := make([]time.Duration, w.n)
	errs := make([]error, w.p)
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range w.p {
		wg.Go(func() {
			for errs[k] == nil {
				i := int(next.Add(1)) - 1
				if i >= w.n {
					return
				}
				if took[i], errs[k] = dialOne(w.addr); errs[k] == nil {
					errs[k] = w.next()
				}
			}
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}

// dialOne makes a connection and, to echo, sends a message and receives it back.
func dialOne(addr string) (took time.Duration, err error) {
	var m message
	d := cm.Dialer{Options: options}
	echo := options.PrivateData[0] != 0
	if echo {
		d.Setup = m.prepare
	}
	begin := time.Now()
	e, err := d.Dial(context.Background(), addr)
	if err != nil {
		return 0, err
	}
	if echo {
		err = m.send()
		if err == nil {
			err = m.receive()
		}
	}
	took = time.Since(begin)
	return took, errors.Join(err, e.Close())
}

// message is the memory of a connection that echoes. One buffer holds both sent and
// received messages.
type message struct {
	*cm.Endpoint
	mr *uverbs.MR
}

const (
	size  = 8
	recvs = 8 // as in C, which may send a message again
)

func (m *message) prepare(e *cm.Endpoint) (err error) {
	m.Endpoint = e
	if m.mr, err = e.AllocMR(size, verbs.AccessLocalWrite); err != nil {
		return err
	}
	wr := verbs.RecvWR{SGL: []verbs.SGE{m.mr.SGE(0, size)}}
	for range recvs {
		if _, err := e.QP.PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}

func (m *message) send() error {
	_, err := m.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, SGL: []verbs.SGE{m.mr.SGE(0, size)}})
	return err
}

// receive waits for a message.
func (m *message) receive() error {
	var wc [1]verbs.WC
	for m.RecvCQ.Poll(wc[:]) == 0 {
	}
	return wc[0].Err()
}
