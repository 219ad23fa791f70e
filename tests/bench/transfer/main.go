// Command transfer transfers messages over a connection with package uverbs, as
// c/transfer.c does with libibverbs, and prints how long that took. Both take the same
// arguments and print the same; the comments of the C program describe them. With -w both
// sides wait with PollWait, and otherwise as with -c.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

var opcodes = map[string]verbs.Opcode{
	"send": verbs.OpSend, "write": verbs.OpRDMAWrite, "read": verbs.OpRDMARead, "add": verbs.OpFetchAdd,
}

// waits are the options.
var waits = map[string]uint32{"-e": events, "-w": pollWait}

func main() {
	var wait uint32
	if len(os.Args) > 1 && waits[os.Args[1]] != 0 {
		wait = waits[os.Args[1]]
		os.Args = slices.Delete(os.Args, 1, 2)
	}
	self.Main("transfer", "lat|rate OP SIZE N WARM LIST", serve, func(addr string, args []string) error {
		return client(addr, wait, args)
	})
}

func client(addr string, wait uint32, args []string) error {
	c := &conn{work: work{Op: opcodes[args[1]], Events: wait}}
	if c.Op == 0 {
		return fmt.Errorf("unknown operation %s", args[1])
	}
	if err := self.Numbers(args[2:], &c.Size, &c.N, &c.warm, &c.List); err != nil {
		return err
	}
	c.N += c.warm
	if args[0] == "rate" {
		c.Rate = 1
	}
	d := cm.Dialer{Options: c.options(func() any { c.work.Memory = c.mine; return &c.work })}
	if _, err := d.Dial(context.Background(), addr); err != nil {
		return err
	}
	defer c.Close()
	if _, err := binary.Decode(c.PrivateData, binary.NativeEndian, &c.peer); err != nil {
		return err
	}
	c.prepareRequests()
	defer c.lockThread()()
	took := make([]time.Duration, c.N-c.warm)
	if err := self.Again(func(out *bufio.Writer) error { return c.measure(took, out) }); err != nil {
		return err
	}
	return c.tell(0)
}

// measure does the work once, and prints how long it took.
func (c *conn) measure(took []time.Duration, out *bufio.Writer) error {
	if err := c.tell(1); err != nil {
		return err
	}
	if _, err := c.hear(); err != nil {
		return err
	}
	c.start = time.Now()
	err := error(nil)
	if c.Rate != 0 {
		err = c.stream()
	} else {
		err = c.ping(took)
	}
	fmt.Fprintf(out, "measured %d\nnanoseconds %d\n", c.N-c.before, time.Since(c.start))
	if c.Rate == 0 {
		self.Took(out, took)
	}
	return err
}

// serve serves one client after the other until the standard input ends.
func serve(addr string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	self.Ready()
	for {
		r, err := l.Accept(ctx)
		if err == nil {
			err = serveOne(ctx, r)
		}
		if err != nil {
			return err
		}
	}
}

func serveOne(ctx context.Context, r *cm.Request) error {
	c := new(conn)
	if _, err := binary.Decode(r.PrivateData(), binary.NativeEndian, &c.work); err != nil {
		return err
	}
	c.peer = c.work.Memory
	if _, err := r.Accept(ctx, c.options(func() any { return &c.mine })); err != nil {
		return err
	}
	defer c.Close()
	c.prepareRequests()
	defer c.lockThread()()
	for {
		switch more, err := c.hear(); {
		case err != nil:
			return err
		case more == 0:
			<-c.Done()
			return nil
		}
		err := c.tell(1)
		switch {
		case err != nil || c.fetches() || c.Rate != 0 && c.Op == verbs.OpRDMAWrite:
		case c.Rate != 0:
			err = c.receiveAll()
		default:
			err = c.pong()
		}
		if err != nil {
			return err
		}
	}
}

// lockThread locks a polling loop to its thread, so that the scheduler does not move it
// between processors.
func (c *conn) lockThread() (leave func()) {
	if c.Events != 0 {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
