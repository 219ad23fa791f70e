package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"sync"
	"text/tabwriter"
	"time"
)

// load is how bench uses a server.
type load struct {
	clients, size int
	time          time.Duration
}

// run prints what a server does by RDMA, if there is any, and by HTTP.
func (l load) run(ctx context.Context, url string) error {
	if l.clients < 1 || l.size < 8 || l.size > maxObject {
		return fmt.Errorf("%d clients with objects of %d bytes: want some, and 8 to %d", l.clients, l.size, maxObject)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\t\tobjects/s\tMB/s\tmedian\t99 of 100 within\t")
	for _, by := range []string{"rdma", "http"} {
		if err := l.measure(ctx, w, url, by); err != nil {
			w.Flush()
			return err
		}
	}
	return w.Flush()
}

// measure puts and gets objects until the time is over, and checks all of them.
func (l load) measure(ctx context.Context, w *tabwriter.Writer, url, by string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	var mu sync.Mutex
	took := map[string][]time.Duration{}
	start := time.Now()
	for i := range l.clients {
		all.Go(func() {
			puts, gets, err := l.client(ctx, url, by, fmt.Sprintf("bench/%s%d", by, i), start.Add(l.time))
			if err != nil {
				cancel(err)
			}
			mu.Lock()
			defer mu.Unlock()
			took["PUT"], took["GET"] = append(took["PUT"], puts...), append(took["GET"], gets...)
		})
	}
	all.Wait()
	elapsed := time.Since(start).Seconds()
	for _, op := range []string{"PUT", "GET"} {
		if times := took[op]; len(times) > 0 {
			slices.Sort(times)
			rate := float64(len(times)) / elapsed
			fmt.Fprintf(w, "%s\t%s\t%.0f\t%.1f\t%v\t%v\t\n", by, op, rate, rate*float64(l.size)/1e6,
				times[len(times)/2].Round(time.Microsecond), times[len(times)*99/100].Round(time.Microsecond))
		}
	}
	return context.Cause(ctx)
}

// client puts an object and gets it again, each time with other contents.
func (l load) client(ctx context.Context, url, by, name string, until time.Time) (puts, gets []time.Duration, err error) {
	c, err := newClient(ctx, nil, url, make([]byte, l.size))
	if err != nil {
		return nil, nil, err
	}
	defer c.close()
	if by == "http" {
		c.endpoint = ""
	}
	for round := uint64(1); round == 1 || time.Now().Before(until); round++ { // connecting may take all the time
		for off := 0; off+8 <= l.size; off += 4096 {
			binary.NativeEndian.PutUint64(c.mem[off:], round+uint64(off))
		}
		sum, start := checksum(c.mem), time.Now()
		if err := c.put(ctx, name, l.size); err != nil {
			return nil, nil, err
		}
		puts = append(puts, time.Since(start))
		clear(c.mem)
		start = time.Now()
		n, err := c.get(ctx, name)
		if err != nil {
			return nil, nil, err
		}
		gets = append(gets, time.Since(start))
		if n != l.size || checksum(c.mem) != sum {
			return nil, nil, fmt.Errorf("%s: got %d bytes that differ from the %d that were put", name, n, l.size)
		}
		if c.by != by {
			return nil, nil, fmt.Errorf("%s came by %s, not %s", name, c.by, by)
		}
	}
	return puts, gets, nil
}
