// Command connect makes connections with package cm, as c/connect.c does with librdmacm, and
// prints how long that took. Both take the same arguments and print the same; the comments of
// the C program describe them. With -c this one uses a cm.Channel, and otherwise cm.Dialer and
// cm.Listener.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
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

// pause is the time for the peer to tear down the connections of a round.
const pause = 5 * time.Millisecond

func main() {
	serve, dial := serve, dial
	if len(os.Args) > 1 && os.Args[1] == "-c" {
		os.Args = slices.Delete(os.Args, 1, 2)
		serve, dial = onChannel()
	}
	self.Main("connect", "N P", serve, func(addr string, args []string) error { return client(addr, args, dial) })
}

func client(addr string, args []string, dial func(addr string, n, p int) error) error {
	var n, p int
	if err := self.Numbers(args, &n, &p); err != nil {
		return err
	}
	if err := dial(addr, 1, 1); err != nil { // opens the device
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
				log.Fatal(err)
			}
		}()
	}
}
