// Command first is a minimal RDMA program on packages cm and uverbs, as c/first.c
// is with libibverbs and librdmacm. Both take the same arguments and print the
// same; the comments of the C program describe them.
package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime/debug"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "first:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch len(args) {
	case 0:
		return list()
	case 1:
		return open(args[0])
	case 2:
		return ping(net.JoinHostPort(args[0], args[1]))
	}
	return serve(net.JoinHostPort(args[1], args[2]))
}

func list() error {
	devices, err := uverbs.Devices()
	for _, d := range devices {
		fmt.Println(d.Name)
	}
	return err
}

func open(name string) error {
	dev, err := uverbs.Open(name)
	if err != nil {
		return err
	}
	defer dev.Close()
	debug.FreeOSMemory() // an idle process does so by itself after some minutes
	kb, err := self.Resident()
	fmt.Println("kilobytes", kb)
	return err
}

var capacity = verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1}

// conn is a connection with two bytes of memory: one to send and one to receive.
type conn struct {
	*cm.Endpoint
	mr *uverbs.MR
}

// options returns options for a connection that allocates memory and posts a receive.
func (c *conn) options() cm.Options {
	return cm.Options{Cap: capacity, Setup: func(e *cm.Endpoint) (err error) {
		if c.mr, err = e.AllocMR(2, verbs.AccessLocalWrite); err != nil {
			return err
		}
		_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{c.mr.SGE(1, 1)}})
		return err
	}}
}

func poll(cq *uverbs.CQ) error {
	var wc [1]verbs.WC
	for cq.Poll(wc[:]) == 0 {
	}
	return wc[0].Err()
}

func (c *conn) sendByte() error {
	_, err := c.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGL: []verbs.SGE{c.mr.SGE(0, 1)}})
	if err != nil {
		return err
	}
	return poll(c.SendCQ)
}

func ping(addr string) (err error) {
	var c conn
	if c.Endpoint, err = (&cm.Dialer{Options: c.options()}).Dial(context.Background(), addr); err != nil {
		return err
	}
	defer c.Close()
	c.mr.Bytes()[0] = '!'
	if err := c.sendByte(); err != nil {
		return err
	}
	if err := poll(c.RecvCQ); err != nil {
		return err
	}
	fmt.Println("byte", c.mr.Bytes()[1])
	return nil
}

func serve(addr string) error {
	l, err := cm.Listen(context.Background(), addr)
	if err != nil {
		return err
	}
	self.Ready(func() { os.Exit(0) })
	for {
		r, err := l.Accept(context.Background())
		if err == nil {
			err = answer(r)
		}
		if err != nil {
			return err
		}
	}
}

func answer(r *cm.Request) (err error) {
	var c conn
	if c.Endpoint, err = r.Accept(context.Background(), c.options()); err != nil {
		return err
	}
	defer c.Close()
	if err := poll(c.RecvCQ); err != nil {
		return err
	}
	c.mr.Bytes()[0] = c.mr.Bytes()[1]
	// A client that has the byte may disconnect before this side has the acknowledgement.
	if err := c.sendByte(); err != nil && !errors.Is(err, verbs.WCFlushErr) {
		return err
	}
	<-c.Done()
	return nil
}
