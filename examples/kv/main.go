// Command kv is a key-value store that clients read by RDMA READ: the device answers them, and
// the server's program sleeps. The server gets its pairs from the standard input.
//
//	kv serve 10.9.0.1:7000 <pairs        # lines of KEY VALUE; later ones replace earlier ones
//	kv 10.9.0.1:7000 get KEY...
//	kv 10.9.0.1:7000 bench KEY N         # reads the key N times
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/goverbs/verbs/rconn"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	ctx := context.Background()
	err := errors.New("usage: kv serve ADDR | ADDR get KEY... | ADDR bench KEY N")
	switch args := os.Args[1:]; {
	case len(args) == 2 && args[0] == "serve":
		err = serve(ctx, args[1])
	case len(args) > 2 && args[1] == "get":
		err = get(ctx, args[0], args[2:])
	case len(args) == 4 && args[1] == "bench":
		err = bench(ctx, args[0], args[2], args[3])
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
	t := newTable()
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			key, value, _ := strings.Cut(lines.Text(), " ")
			if err := t.set(key, value); err != nil {
				log.Print(err)
			}
		}
		if err := lines.Err(); err != nil {
			log.Print("the table stays as it is: ", err)
		}
	}()
	for {
		req, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		go func() {
			if err := t.serveClient(ctx, req); err != nil {
				log.Printf("%v: %v", req.RemoteAddr(), err)
			}
		}()
	}
}

// serveClient lets a client read the table, and waits until it has gone.
func (t table) serveClient(ctx context.Context, req *rconn.Request) error {
	c, err := req.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
		region, err := c.Register(t, rconn.RemoteRead)
		if err != nil {
			return err
		}
		return c.Announce(0, region.All())
	}})
	if err != nil {
		return err
	}
	defer c.Close()
	return c.AwaitDisconnect(ctx)
}

// store is a client's side of the table.
type store struct {
	*rconn.Conn
	table rconn.RemoteRegion
	part  []byte // where a key may be
}

func dial(ctx context.Context, addr string) (*store, error) {
	c, err := rconn.Dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	if len(c.Adverts()) != 1 || c.Adverts()[0].Len != tableSize {
		c.Close()
		return nil, fmt.Errorf("%s is no key-value store", addr)
	}
	return &store{c, c.Adverts()[0], make([]byte, probes*slotSize)}, nil
}

// get reads the value of a key: one RDMA READ, or more while the server writes it.
func (s *store) get(ctx context.Context, key string) (string, error) {
	for {
		if err := s.Get(ctx, s.part, s.table.At(slotOf(key))); err != nil {
			return "", err
		}
		if value, err := find(s.part, key); err != errTorn {
			return value, err
		}
	}
}

func get(ctx context.Context, addr string, keys []string) error {
	s, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer s.Close()
	for _, key := range keys {
		value, err := s.get(ctx, key)
		if err != nil {
			return err
		}
		fmt.Println(value)
	}
	return nil
}

func bench(ctx context.Context, addr, key, times string) error {
	n, err := strconv.Atoi(times)
	if err != nil {
		return err
	}
	s, err := dial(ctx, addr)
	if err != nil {
		return err
	}
	defer s.Close()
	start := time.Now()
	for range n {
		if _, err := s.get(ctx, key); err != nil {
			return err
		}
	}
	fmt.Println(n, "reads in", time.Since(start))
	return nil
}
