// Command connect makes connections with package cm, as c/connect.c does with
// librdmacm, and says how long that took. Both take the same arguments and
// print the same.
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
	"sync"
	"sync/atomic"
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

func run(args []string) error {
	if len(args) == 3 && args[0] == "-s" {
		return serve(net.JoinHostPort(args[1], args[2]))
	}
	if len(args) != 5 {
		return errors.New("usage: connect [-s] ADDR PORT [N P REST]")
	}
	n, err1 := strconv.Atoi(args[2])
	p, err2 := strconv.Atoi(args[3])
	rest, err3 := strconv.Atoi(args[4])
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	addr := net.JoinHostPort(args[0], args[1])
	if _, err := dial(addr, 1, 1, 0); err != nil { // opens the device
		return err
	}
	start := time.Now()
	took, err := dial(addr, n, p, time.Duration(rest)*time.Microsecond)
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
func serve(addr string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	self.Ready(cancel)
	for {
		r, err := l.Accept(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		go func() {
			e, err := r.Accept(ctx, options)
			if err != nil {
				return // the peer has gone before we heard that it was there
			}
			<-e.Done()
			e.Close()
		}()
	}
}

// dial makes n connections, p at a time with a rest between one and the next, each
// of which ends when it is up, and returns how long each took.
func dial(addr string, n, p int, rest time.Duration) ([]time.Duration, error) {
	took := make([]time.Duration, n)
	errs := make([]error, p)
	var next atomic.Int64
	var wg sync.WaitGroup
	for w := range p {
		wg.Go(func() {
			d := cm.Dialer{Options: options}
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				begin := time.Now()
				e, err := d.Dial(context.Background(), addr)
				if err != nil {
					errs[w] = err
					return
				}
				took[i] = time.Since(begin)
				if errs[w] = e.Close(); errs[w] != nil {
					return
				}
				if rest > 0 {
					time.Sleep(rest)
				}
			}
		})
	}
	wg.Wait()
	return took, errors.Join(errs...)
}
