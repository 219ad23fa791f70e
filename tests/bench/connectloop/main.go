// Command connectloop makes connections with package cm's Loop, one goroutine a
// side, as c/connect.c does with librdmacm, and says how long that took. Both take
// the same arguments and print the same.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
	"github.com/goverbs/verbs/uverbs"
)

var options = cm.Options{
	Cap:                uverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	ResponderResources: 1,
	InitiatorDepth:     1,
}

const timeout = 5 * time.Second

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

func run(args []string) error {
	loop, err := cm.NewLoop()
	if err != nil {
		return err
	}
	defer loop.Close()
	if len(args) == 3 && args[0] == "-s" {
		addr, err := netip.ParseAddrPort(args[1] + ":" + args[2])
		if err != nil {
			return err
		}
		return serve(loop, addr)
	}
	if len(args) != 5 {
		return errors.New("usage: connectloop [-s] ADDR PORT [N P REST]")
	}
	addr, err1 := netip.ParseAddrPort(args[0] + ":" + args[1])
	n, err2 := strconv.Atoi(args[2])
	p, err3 := strconv.Atoi(args[3])
	rest, err4 := strconv.Atoi(args[4])
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return err
	}
	if _, err := dial(loop, addr, 1, 1, 0); err != nil { // opens the device
		return err
	}
	start := time.Now()
	took, err := dial(loop, addr, n, p, time.Duration(rest)*time.Microsecond)
	if err != nil {
		return err
	}
	all := time.Since(start)
	slices.Sort(took)
	fmt.Printf("connections %d\nmicroseconds %d\nmedian %.1f\n",
		len(took), all.Microseconds(), float64(took[n/2].Nanoseconds())/1e3)
	return nil
}

// serve accepts all, and closes what its peer has closed, until the standard
// input ends.
func serve(loop *cm.Loop, addr netip.AddrPort) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := loop.NewID()
	if err != nil {
		return err
	}
	defer l.Close()
	if err := errors.Join(l.Bind(addr), l.Listen(0)); err != nil {
		return err
	}
	self.Ready(cancel)
	for {
		ev, err := loop.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		switch ev.Type {
		case cm.ConnectRequest:
			ev.Accept(options) // fails if the peer has gone before we heard that it was there
		case cm.Disconnected:
			ev.Endpoint.Close()
		}
	}
}

// dial makes n connections, p at a time with a rest between one and the next, each
// of which ends when it is up, and returns how long each took.
func dial(loop *cm.Loop, to netip.AddrPort, n, p int, rest time.Duration) (took []time.Duration, err error) {
	begun := 0
	begin := func() error {
		if begun == n {
			return nil
		}
		begun++
		now := time.Now()
		id, err := loop.NewID()
		if err != nil {
			return err
		}
		id.Tag = now
		return id.ResolveAddr(netip.AddrPort{}, to, timeout)
	}
	for range p {
		if err := begin(); err != nil {
			return nil, err
		}
	}
	for len(took) < n {
		ev, err := loop.Next(context.Background())
		if err == nil {
			err = ev.Err()
		}
		if err != nil {
			return nil, err
		}
		switch ev.Type {
		case cm.AddrResolved:
			err = ev.ID.ResolveRoute(timeout)
		case cm.RouteResolved:
			_, err = ev.Connect(options)
		case cm.Established:
			took = append(took, time.Since(ev.ID.Tag.(time.Time)))
			if err = ev.Endpoint.Close(); err != nil {
				break
			}
			if rest > 0 {
				time.Sleep(rest)
			}
			err = begin()
		}
		if err != nil {
			return nil, err
		}
	}
	return took, nil
}
