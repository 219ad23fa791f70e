// Command transfer transfers messages over a connection with package uverbs, as
// c/transfer.c does with libibverbs, and prints how long that took. Both take the same
// arguments and print the same; the comments of the C program describe them. With -w both
// sides wait with PollWait, and otherwise as with -e.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"strconv"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

var opcodes = map[string]verbs.Opcode{
	"send": verbs.OpSend, "write": verbs.OpRDMAWrite, "read": verbs.OpRDMARead, "add": verbs.OpFetchAdd,
}

func main() {
	log.SetFlags(0)
	if err := run(context.Background(), os.Args[1:]); err != nil {
		log.Fatal("transfer: ", err)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 3 && args[0] == "-s" {
		return serve(ctx, net.JoinHostPort(args[1], args[2]))
	}
	var w work
	if len(args) > 0 && args[0] == "-e" {
		w.Events, args = events, args[1:]
	} else if len(args) > 0 && args[0] == "-w" {
		w.Events, args = pollWait, args[1:]
	}
	if len(args) != 8 || opcodes[args[3]] == 0 {
		return errors.New("usage: transfer -s ADDR PORT | [-e|-w] ADDR PORT lat|rate OP SIZE N WARM LIST")
	}
	if args[2] == "rate" {
		w.Rate = 1
	}
	w.Op = opcodes[args[3]]
	var warm uint32
	for i, field := range []*uint32{&w.Size, &w.N, &warm, &w.List} {
		v, err := strconv.ParseUint(args[4+i], 10, 32)
		if err != nil {
			return err
		}
		*field = uint32(v)
	}
	w.N += warm
	return client(ctx, net.JoinHostPort(args[0], args[1]), w, warm)
}

func client(ctx context.Context, addr string, w work, warm uint32) error {
	e := &end{work: w, warm: warm}
	d := cm.Dialer{Options: e.options(func() any { e.work.Memory = e.mine; return &e.work })}
	if _, err := d.Dial(ctx, addr); err != nil {
		return err
	}
	defer e.Close()
	if _, err := binary.Decode(e.PrivateData, binary.NativeEndian, &e.peer); err != nil {
		return err
	}
	e.prepareRequests()
	defer e.lockThread()()
	took := make([]time.Duration, w.N-warm)
	if err := self.Again(func(out *bufio.Writer) error { return e.measure(took, out) }); err != nil {
		return err
	}
	return e.tell(0)
}

// measure does the work once, and prints how long it took.
func (e *end) measure(took []time.Duration, out *bufio.Writer) error {
	if err := e.tell(1); err != nil {
		return err
	}
	if _, err := e.hear(); err != nil {
		return err
	}
	e.start = time.Now()
	err := error(nil)
	if e.Rate != 0 {
		err = e.stream()
	} else {
		err = e.ping(took)
	}
	fmt.Fprintf(out, "measured %d\nnanoseconds %d\n", e.N-e.before, time.Since(e.start))
	if e.Rate == 0 {
		fmt.Fprint(out, "took")
		for _, t := range took {
			fmt.Fprintf(out, " %d", t)
		}
		fmt.Fprintln(out)
	}
	return err
}

// serve serves one client after the other until the standard input ends.
func serve(ctx context.Context, addr string) error {
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
	e := new(end)
	if _, err := binary.Decode(r.PrivateData(), binary.NativeEndian, &e.work); err != nil {
		return err
	}
	e.peer = e.work.Memory
	if _, err := r.Accept(ctx, e.options(func() any { return &e.mine })); err != nil {
		return err
	}
	defer e.Close()
	e.prepareRequests()
	defer e.lockThread()()
	for {
		switch more, err := e.hear(); {
		case err != nil:
			return err
		case more == 0:
			<-e.Done()
			return nil
		}
		err := e.tell(1)
		switch {
		case err != nil || e.fetches() || e.Rate != 0 && e.Op == verbs.OpRDMAWrite:
		case e.Rate != 0:
			err = e.receiveAll()
		default:
			err = e.pong()
		}
		if err != nil {
			return err
		}
	}
}

// lockThread locks a polling loop to its thread, so that the scheduler does not move it
// between processors.
func (e *end) lockThread() (leave func()) {
	if e.Events != 0 {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
