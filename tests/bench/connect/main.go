// Command connect makes connections with package cm, as c/connect.c does with
// librdmacm, and prints how long that took. Both take the same arguments and
// print the same; the comments of the C program describe them. With -loop before the
// arguments the connections are made event by event, one goroutine per side, as in C,
// otherwise by Dial and Listen.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

var options = cm.Options{
	SharePD:            true,
	Polled:             true,
	Cap:                verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1},
	ResponderResources: 1,
	InitiatorDepth:     1,
	PrivateData:        []byte{0}, // 1 to echo
}

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("connect: ", err)
	}
}

// connector is a way to make connections.
type connector interface {
	// serve accepts connections until ctx ends, and closes those that the peer has closed.
	serve(ctx context.Context, addr string, ready func(), torn *teardownNotifier) error
	// dial makes the connections, closes each when it is established, and returns how long
	// each took.
	dial(w work) ([]time.Duration, error)
}

// work describes the connections to make.
type work struct {
	addr string
	n, p int
	next func() error // called after each connection
}

func run(args []string) error {
	var by connector = dialConnector{}
	if len(args) > 0 && args[0] == "-loop" {
		loop, err := cm.NewLoop()
		if err != nil {
			return err
		}
		defer loop.Close()
		by, args = loopConnector{loop}, args[1:]
	}
	if len(args) == 3 && args[0] == "-s" {
		torn, err := newTeardownNotifier(args[2])
		if err != nil {
			return err
		}
		ctx, cancel := context.WithCancel(context.Background()) // canceled at the end of the standard input
		defer cancel()
		return by.serve(ctx, net.JoinHostPort(args[1], args[2]), func() { self.Ready(cancel) }, torn)
	}
	if len(args) < 4 {
		return errors.New("usage: connect [-loop] -s ADDR PORT | ADDR PORT rate|each|first N [P]")
	}
	w := work{addr: net.JoinHostPort(args[0], args[1]), p: 1}
	for i, field := range []*int{&w.n, &w.p}[:len(args)-3] {
		var err error
		if *field, err = strconv.Atoi(args[3+i]); err != nil {
			return err
		}
	}
	return client(by, w, args[1], args[2])
}

func client(by connector, w work, port, mode string) error {
	torn, err := dialNotifier(port)
	if err != nil {
		return err
	}
	if mode == "first" {
		options.PrivateData[0] = 1
	}
	w.next = func() error { return nil }
	if mode != "rate" {
		w.next = func() error { return torn.wait(1) }
	}
	measure := func(w work) (took []time.Duration, all time.Duration, err error) {
		start := time.Now()
		if took, err = by.dial(w); err != nil {
			return nil, 0, err
		}
		all = time.Since(start)
		if mode == "rate" {
			err = torn.wait(w.n)
		}
		return took, all, err
	}
	one := w
	one.n = 1
	if _, _, err := measure(one); err != nil { // opens the device
		return err
	}
	return self.Again(func(out *bufio.Writer) error {
		took, all, err := measure(w)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "connections %d\nnanoseconds %d\ntook", len(took), all)
		for _, t := range took {
			fmt.Fprintf(out, " %d", t)
		}
		fmt.Fprintln(out)
		return nil
	})
}
