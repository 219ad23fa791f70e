// Command reconnect sends numbered lines to a server and connects again when the connection
// breaks or the server is restarted. The server acknowledges each line; the client sends those
// again that were not. So each line arrives at least once: a server that must act only once
// for each compares the numbers, as this one does.
//
//	reconnect serve 10.9.0.1:7000
//	reconnect 10.9.0.1:7000 LINES
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

const (
	patience = 5 * time.Second       // for an acknowledgement
	least    = 20 * time.Millisecond // between attempts; doubled up to most
	most     = 500 * time.Millisecond
	giveUp   = time.Minute           // without success
	rest     = 20 * time.Millisecond // between lines, so that there is time for faults
)

func main() {
	log.SetFlags(0)
	err := errors.New("usage: reconnect serve ADDR | reconnect ADDR LINES")
	if len(os.Args) == 3 && os.Args[1] == "serve" {
		err = serve(os.Args[2])
	} else if len(os.Args) == 3 {
		var n int
		if n, err = strconv.Atoi(os.Args[2]); err == nil {
			err = (&client{addr: os.Args[1]}).send(context.Background(), n)
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(addr string) error {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			answer(conn)
		}()
	}
}

// answer acknowledges lines, and prints those that are new on this connection.
func answer(conn net.Conn) {
	last := -1
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if err != nil {
			log.Printf("%v: %v", conn.RemoteAddr(), err)
			return
		}
		if n > last {
			fmt.Println("got", n)
			last = n
		}
		if _, err := fmt.Fprintln(conn, n); err != nil {
			return // the client will connect again
		}
	}
}

// client sends lines over one connection after the other.
type client struct {
	addr    string
	conn    net.Conn // nil if there is none
	answers *bufio.Scanner
}

func (c *client) send(ctx context.Context, n int) error {
	defer c.drop()
	for i := range n {
		pause, deadline := least, time.Now().Add(giveUp)
		for err := c.try(ctx, i); err != nil; err = c.try(ctx, i) {
			c.drop()
			if time.Now().After(deadline) {
				return fmt.Errorf("line %d: %w", i, err)
			}
			log.Printf("line %d: %v; trying again", i, err)
			time.Sleep(pause/2 + rand.N(pause/2)) // clients of one server should not all come at once
			pause = min(2*pause, most)
		}
		time.Sleep(rest)
	}
	fmt.Println("all", n, "lines are acknowledged")
	return nil
}

// try sends line i and waits until it is acknowledged.
func (c *client) try(ctx context.Context, i int) (err error) {
	if c.conn == nil {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		if c.conn, err = new(rsock.Dialer).DialContext(ctx, "rdma", c.addr); err != nil {
			c.conn = nil
			return err
		}
		c.answers = bufio.NewScanner(c.conn)
	}
	c.conn.SetDeadline(time.Now().Add(patience))
	if _, err := fmt.Fprintln(c.conn, i); err != nil {
		return err
	}
	for c.answers.Scan() {
		if c.answers.Text() == strconv.Itoa(i) {
			return nil
		}
	}
	return errors.Join(errors.New("no acknowledgement"), c.answers.Err())
}

func (c *client) drop() {
	if c.conn != nil {
		c.conn.Close()
		c.conn = nil
	}
}
