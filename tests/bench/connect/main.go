// Command connect makes connections with package cm, as c/connect.c does with
// librdmacm, and says how long that took. Both take the same arguments and
// print the same; with -loop before them the connections are made event by event,
// one goroutine a side, as C makes them, without it by Dial and Listen.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
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

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// way is one to make connections.
type way interface {
	// serve accepts all, and closes what its peer has closed, until ctx ends.
	serve(ctx context.Context, addr string, ready func()) error
	// dial makes n connections, p at a time with a rest between one and the next,
	// each of which ends when it is up, and returns how long each took.
	dial(addr string, n, p int, rest time.Duration) ([]time.Duration, error)
}

func run(args []string) error {
	var by way = dialing{}
	if len(args) > 0 && args[0] == "-loop" {
		loop, err := cm.NewLoop()
		if err != nil {
			return err
		}
		defer loop.Close()
		by, args = looping{loop}, args[1:]
	}
	if len(args) == 3 && args[0] == "-s" {
		ctx, cancel := context.WithCancel(context.Background()) // when the standard input ends
		defer cancel()
		return by.serve(ctx, net.JoinHostPort(args[1], args[2]), func() { self.Ready(cancel) })
	}
	if len(args) != 5 {
		return errors.New("usage: connect [-loop] [-s] ADDR PORT [N P REST]")
	}
	n, err1 := strconv.Atoi(args[2])
	p, err2 := strconv.Atoi(args[3])
	rest, err3 := strconv.Atoi(args[4])
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	addr := net.JoinHostPort(args[0], args[1])
	if _, err := by.dial(addr, 1, 1, 0); err != nil { // opens the device
		return err
	}
	start := time.Now()
	took, err := by.dial(addr, n, p, time.Duration(rest)*time.Microsecond)
	if err != nil {
		return err
	}
	all := time.Since(start)
	slices.Sort(took)
	fmt.Printf("connections %d\nmicroseconds %d\nmedian %.1f\n",
		len(took), all.Microseconds(), float64(took[n/2].Nanoseconds())/1e3)
	return nil
}
