package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/goverbs/verbs/cm"
)

// dialing is the way of Dial and Listen.
type dialing struct{}

func (dialing) serve(ctx context.Context, addr string, ready func()) error {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	ready()
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

func (dialing) dial(addr string, n, p int, rest time.Duration) ([]time.Duration, error) {
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
