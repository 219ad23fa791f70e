// Command transfer moves messages over a connection with package uverbs, as
// c/transfer.c does with libibverbs, and says how long that took. Both take the
// same arguments and print the same; the C program's text says what they do.
package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/uverbs"
)

var opcodes = map[string]uverbs.Opcode{
	"send": uverbs.OpSend, "write": uverbs.OpRDMAWrite, "read": uverbs.OpRDMARead, "add": uverbs.OpFetchAdd,
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
	if len(args) > 0 && args[0] == "-e" {
		w.Events = 1
		args = args[1:]
	}
	if len(args) < 6 || opcodes[args[3]] == 0 && args[3] != "write" {
		return errors.New("usage: transfer -s ADDR PORT | [-e] ADDR PORT lat|rate OP SIZE N [LIST]")
	}
	if args[2] == "rate" {
		w.Rate = 1
	}
	w.Op = opcodes[args[3]]
	for i, field := range []*uint32{&w.Size, &w.N, &w.List}[:len(args)-4] {
		v, err := strconv.ParseUint(args[4+i], 10, 32)
		if err != nil {
			return err
		}
		*field = uint32(v)
	}
	return client(net.JoinHostPort(args[0], args[1]), w)
}

func client(addr string, w work) error {
	took := make([]time.Duration, w.N)
	e, err := dial(addr, w)
	if err != nil {
		return err
	}
	defer e.Close()
	defer e.stay()()

	start := time.Now()
	if w.Rate != 0 {
		err = e.stream()
	} else {
		err = e.ask(took)
	}
	if err != nil {
		return err
	}
	if err := e.tell(); err != nil {
		return err
	}
	theirs, err := e.hear(w.Events != 0)
	if err != nil {
		return err
	}
	all := time.Since(start)

	slices.Sort(took)
	fmt.Printf("messages %d\nbytes %d\n", e.got.Messages, e.got.Bytes)
	fmt.Printf("peer_messages %d\npeer_bytes %d\n", theirs.Messages, theirs.Bytes)
	fmt.Printf("nanoseconds %d\nmedian %d\np99 %d\n", all, took[len(took)/2], took[len(took)*99/100])
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
	defer e.stay()()
	e.meet(e.work.Memory)
	passive := e.fetches() || e.Rate != 0 && e.Op == uverbs.OpRDMAWrite
	switch {
	case passive:
	case e.Rate != 0:
		err = e.drink()
	default:
		err = e.answer()
	}
	if err != nil {
		return err
	}
	if _, err := e.hear(passive || e.Events != 0); err != nil { // the client is done
		return err
	}
	if e.Op == uverbs.OpFetchAdd {
		e.got.Messages = uint64(e.word.Load())
	}
	if err := e.tell(); err != nil {
		return err
	}
	<-ep.Done()
	return nil
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
	e.meet(peer)
	return e, nil
}

// stay keeps a loop that polls on its thread, so that the scheduler does not
// move it around.
func (e *end) stay() (leave func()) {
	if e.Events != 0 {
		return func() {}
	}
	runtime.LockOSThread()
	return runtime.UnlockOSThread
}
