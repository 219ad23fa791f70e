// Command transfer transfers messages over a connection with package uverbs, as
// c/transfer.c does with libibverbs, and prints how long that took. Both take the same
// arguments and print the same; the comments of the C program describe them. With -gMIB
// the client has MIB MiB of live heap and continuously collects garbage. With -w both sides
// wait with PollWait, and otherwise as with -e.
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
	"strings"
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
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("transfer: ", err)
	}
}

func run(args []string) error {
	if len(args) == 3 && args[0] == "-s" {
		return serve(net.JoinHostPort(args[1], args[2]))
	}
	w := work{List: 1}
	for ; len(args) > 0 && args[0][0] == '-'; args = args[1:] {
		if args[0] == "-e" {
			w.Events = 1
		} else if args[0] == "-w" {
			w.Events = pollWait
		} else if mib, err := strconv.Atoi(strings.TrimPrefix(args[0], "-g")); err == nil {
			go collect(grow(mib << 20))
		}
	}
	if len(args) < 6 || opcodes[args[3]] == 0 {
		return errors.New("usage: transfer -s ADDR PORT | [-e|-w] [-gMIB] ADDR PORT lat|rate OP SIZE N [WARM [LIST]]")
	}
	if args[2] == "rate" {
		w.Rate = 1
	}
	w.Op = opcodes[args[3]]
	var warm uint32
	for i, field := range []*uint32{&w.Size, &w.N, &warm, &w.List}[:len(args)-4] {
		v, err := strconv.ParseUint(args[4+i], 10, 32)
		if err != nil {
			return err
		}
		*field = uint32(v)
	}
	w.N += warm
	return client(net.JoinHostPort(args[0], args[1]), w, warm)
}

func client(addr string, w work, warm uint32) error {
	took := make([]time.Duration, w.N-warm)
	e, err := dial(addr, w)
	if err != nil {
		return err
	}
	defer e.Close()
	defer e.lockThread()()
	e.warm = warm
	err = self.Again(func(out *bufio.Writer) error { return e.measure(took, out) })
	if err != nil {
		return err
	}
	return e.sendReport(over)
}

// measure does the work once, and prints how long it took.
func (e *end) measure(took []time.Duration, out *bufio.Writer) error {
	e.reset()
	if err := e.sendReport(begin); err != nil {
		return err
	}
	if _, err := e.recvReport(true); err != nil {
		return err
	}
	e.start = time.Now()
	err := error(nil)
	if e.Rate != 0 {
		err = e.stream()
	} else {
		err = e.ping(took)
	}
	if err == nil {
		err = e.sendReport(e.got)
	}
	if err != nil {
		return err
	}
	theirs, err := e.recvReport(e.Events != 0)
	if err != nil {
		return err
	}
	all := time.Since(e.start)

	fmt.Fprintf(out, "messages %d\nbytes %d\n", e.got.Messages, e.got.Bytes)
	fmt.Fprintf(out, "peer_messages %d\npeer_bytes %d\n", theirs.Messages, theirs.Bytes)
	fmt.Fprintf(out, "measured %d\nnanoseconds %d\n", e.N-e.before, all)
	if e.Rate == 0 {
		fmt.Fprint(out, "took")
		for _, t := range took {
			fmt.Fprintf(out, " %d", t.Nanoseconds())
		}
		fmt.Fprintln(out)
	}
	return nil
}

// serve serves one client after the other until the standard input ends.
func serve(addr string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	self.Ready(func() { os.Exit(0) })
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
	ep, err := r.Accept(ctx, e.options(func() any { return &e.mine }))
	if err != nil {
		return err
	}
	defer ep.Close()
	defer e.lockThread()()
	e.prepareRequests(e.work.Memory)
	for {
		order, err := e.recvReport(true)
		if err != nil {
			return err
		}
		if order == over {
			break
		}
		if err := e.round(); err != nil {
			return err
		}
	}
	<-ep.Done()
	return nil
}

// round does the server's part of a round.
func (e *end) round() error {
	e.reset()
	err := e.sendReport(begin)
	passive := e.fetches() || e.Rate != 0 && e.Op == verbs.OpRDMAWrite
	switch {
	case err != nil || passive:
	case e.Rate != 0:
		err = e.receiveAll()
	default:
		err = e.pong()
	}
	if err != nil {
		return err
	}
	if _, err := e.recvReport(passive || e.Events != 0); err != nil { // the client is done
		return err
	}
	if e.Op == verbs.OpFetchAdd {
		e.got.Messages = uint64(e.word.Load())
	}
	return e.sendReport(e.got)
}

func dial(addr string, w work) (*end, error) {
	e := &end{work: w}
	d := cm.Dialer{Options: e.options(func() any { e.work.Memory = e.mine; return &e.work })}
	ep, err := d.Dial(context.Background(), addr)
	if err != nil {
		return nil, err
	}
	var peer region
	if _, err := binary.Decode(ep.PrivateData, binary.NativeEndian, &peer); err != nil {
		return nil, err
	}
	e.prepareRequests(peer)
	return e, nil
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
