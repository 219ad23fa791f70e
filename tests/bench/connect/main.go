// Command connect makes connections with package cm, as c/connect.c does with librdmacm, and
// prints how long that took. Both take the same arguments and print the same; the comments of
// the C program describe them.
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
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/tests/bench/self"
)

var options = cm.Options{
	SharePD:            true,
	Cap:                verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInline: -1},
	ResponderResources: 1,
	InitiatorDepth:     1,
}

// pause is how long the peer has to tear down what is left of a round.
const pause = 5 * time.Millisecond

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("connect: ", err)
	}
}

func run(args []string) error {
	if len(args) == 3 && args[0] == "-s" {
		return serve(net.JoinHostPort(args[1], args[2]))
	}
	if len(args) != 4 {
		return errors.New("usage: connect -s ADDR PORT | ADDR PORT N P")
	}
	addr := net.JoinHostPort(args[0], args[1])
	n, err1 := strconv.Atoi(args[2])
	p, err2 := strconv.Atoi(args[3])
	// The first connection opens the device.
	if err := errors.Join(err1, err2, dial(addr, 1, 1)); err != nil {
		return err
	}
	return self.Again(func(out *bufio.Writer) error {
		time.Sleep(pause)
		start := time.Now()
		err := dial(addr, n, p)
		fmt.Fprintf(out, "connections %d\nnanoseconds %d\n", n, time.Since(start))
		return err
	})
}

// dial makes n connections, p at a time, and closes each when it is established.
func dial(addr string, n, p int) error {
	errs := make([]error, p)
	var next atomic.Int64
	var wg sync.WaitGroup
	for k := range p {
		wg.Go(func() {
			d := cm.Dialer{Options: options}
			for errs[k] == nil && int(next.Add(1)) <= n {
				e, err := d.Dial(context.Background(), addr)
				if err == nil {
					err = e.Close()
				}
				errs[k] = err
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// serve accepts connections, and closes those that the peer has closed.
func serve(addr string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	self.Ready()
	for {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			e, err := r.Accept(ctx, options)
			if err != nil {
				return // the peer has gone before the connection was established
			}
			<-e.Done()
			if err := e.Close(); err != nil {
				log.Fatal("connect: ", err)
			}
		}()
	}
}
