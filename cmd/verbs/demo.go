package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/examples/rdma-example/exchange"
	"github.com/goverbs/verbs/uverbs"
)

type demoCmd struct {
	Text string `short:"s" default:"Hello from Go, over RDMA!" help:"String to copy."`
	Addr string `short:"a" help:"Address to use (default: that of the first device)."`
}

// Run plays both sides of rdma-example in this process.
func (c *demoCmd) Run(ctx context.Context) error {
	addr := c.Addr
	if addr == "" {
		var err error
		if addr, err = deviceAddr(); err != nil {
			return err
		}
	}
	l, err := cm.Listen(ctx, joinPort(addr, 0))
	if err != nil {
		return err
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	out := new(prefixer)
	type served struct {
		data []byte
		err  error
	}
	server := make(chan served, 1)
	go func() {
		data, err := exchange.Serve(ctx, out.with("server | "), l)
		if err != nil {
			cancel()
		}
		server <- served{data, err}
	}()
	err = exchange.Client(ctx, out.with("client | "), l.Addr().String(), c.Text)
	if err != nil {
		cancel()
	}
	s := <-server
	if err := errors.Join(err, s.err); err != nil {
		return err
	}
	if !bytes.Equal(s.data, []byte(c.Text)) {
		return fmt.Errorf("the server's memory holds %q", s.data)
	}
	fmt.Printf("the server's memory holds %q\n", s.data)
	return nil
}

// deviceAddr returns an address that leads to the first device.
func deviceAddr() (string, error) {
	d, err := uverbs.Find("")
	if err != nil {
		return "", err
	}
	addrs, err := cm.DeviceAddrs(d)
	if err != nil {
		return "", err
	}
	return addrs[0].String(), nil
}

// prefixer keeps the lines of two writers apart.
type prefixer struct{ mu sync.Mutex }

func (p *prefixer) with(prefix string) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for line := range strings.Lines(string(b)) {
			if _, err := fmt.Fprintf(os.Stdout, "%s%s\n", prefix, strings.TrimRight(line, " \n")); err != nil {
				return 0, err
			}
		}
		return len(b), nil
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
