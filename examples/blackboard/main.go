// Command blackboard shares 4 KiB of memory over package rconn. Clients use RDMA WRITE
// and READ, which do not involve the server's program.
//
//	blackboard serve ADDR
//	blackboard [-v] ADDR write OFFSET TEXT
//	blackboard [-v] ADDR read OFFSET LENGTH
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"strconv"
	"time"

	"github.com/goverbs/verbs/rconn"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	verbose := flag.Bool("v", false, "print the figures of the connection")
	flag.Parse()
	err := errors.New("usage: blackboard serve ADDR | [-v] ADDR write OFFSET TEXT | [-v] ADDR read OFFSET LENGTH")
	if a := flag.Args(); len(a) == 2 && a[0] == "serve" {
		err = serve(context.Background(), a[1])
	} else if len(a) == 4 && (a[1] == "write" || a[1] == "read") {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		err = use(ctx, a[0], a[1] == "write", a[2], a[3], *verbose)
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, addr string) error {
	l, err := rconn.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	board := make([]byte, 4096) // registered for each connection, with its own key
	setup := func(c *rconn.Conn) error {
		region, err := c.Register(board, rconn.ReadWrite)
		if err == nil {
			err = c.Announce(0, region.All())
		}
		return err
	}
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			c, err := req.Accept(ctx, rconn.Options{Setup: setup})
			if err == nil {
				err = errors.Join(c.AwaitDisconnect(ctx), c.Close())
			}
			if err != nil {
				log.Printf("%v: %v", req.RemoteAddr(), err)
			}
		}()
	}
}

func use(ctx context.Context, addr string, write bool, offset, text string, verbose bool) error {
	off, err := strconv.ParseUint(offset, 0, 16)
	n := uint64(0)
	if !write && err == nil {
		n, err = strconv.ParseUint(text, 0, 16)
	}
	if err != nil {
		return fmt.Errorf("offset or length: %w", err)
	}
	c, err := rconn.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer c.Close()
	if len(c.Adverts()) != 1 {
		return fmt.Errorf("%s is no blackboard: it advertises %d regions", addr, len(c.Adverts()))
	}
	b := make([]byte, n)
	if at := c.Adverts()[0].At(int(off)); write {
		err = c.Put(ctx, at, []byte(text))
	} else if err = c.Get(ctx, b, at); err == nil {
		fmt.Printf("%q\n", b)
	}
	if verbose {
		log.Printf("%+v", c.Stats())
	}
	return err
}
