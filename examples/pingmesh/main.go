// Command pingmesh measures delay and loss between all RDMA devices of several hosts, by datagrams,
// as R-Pingmesh does (SIGCOMM 2024). An agent on each host is told where the others serve HTTP:
//
//	pingmesh -peers 10.9.0.2:7473,10.9.0.3:7473 [-listen :7473] [-d rxe0,mlx5_0] [-rate 1000] [-paths 4]
//
// It prints a table for each window, and serves it as text on / and as JSON on /json. It trusts
// peers with their own addresses, and whoever reads /endpoints can send datagrams to them: keep the
// port to the hosts' own network.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

type options struct {
	devices, peers  []string
	rate, paths     int // probes a second of an endpoint
	timeout, window time.Duration
}

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	list := func(to *[]string) func(string) error {
		return func(s string) error { *to = strings.Split(s, ","); return nil }
	}
	var o options
	flag.Func("d", "RDMA `devices`, with commas (default: all)", list(&o.devices))
	flag.Func("peers", "HTTP `addresses` of the other agents, with commas", list(&o.peers))
	listen := flag.String("listen", ":7473", "HTTP address")
	flag.IntVar(&o.rate, "rate", 100, "probes a second that each device sends")
	flag.IntVar(&o.paths, "paths", 1, "flow labels for each pair of devices")
	flag.DurationVar(&o.timeout, "timeout", 500*time.Millisecond, "after which a probe is lost")
	flag.DurationVar(&o.window, "window", 10*time.Second, "of the figures")
	windows := flag.Int("n", 0, "windows until it ends (default: none)")
	flag.Parse()
	if err := run(ctx, &o, *listen, *windows); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, o *options, listen string, windows int) error {
	if o.rate < 1 || o.rate > maxRate || o.paths < 1 || o.paths > maxPaths || o.timeout <= 0 || o.window <= 0 {
		return fmt.Errorf("-rate is from 1 to %d, -paths from 1 to %d, and times are positive", maxRate, maxPaths)
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	a := newAgent(o, &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }})
	server := http.Server{Handler: a, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second, MaxHeaderBytes: 1 << 14}
	defer server.Close()
	ctx, stop := context.WithCancelCause(ctx)
	go func() { stop(server.Serve(l)) }()
	err = a.run(ctx, func(r *report) {
		r.table(os.Stdout)
		if windows--; windows == 0 {
			stop(context.Canceled)
		}
	})
	if cause := context.Cause(ctx); err == nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	return err
}
