// Command stream sends bytes with package rsock, or with -t over TCP, as
// c/stream.c does with rsockets, and says how long that took. Both take the
// same arguments and print the same.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/bench/self"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal(err)
	}
}

// What goes first over a connection.
type work struct{ OneWay, Size, N uint64 }

func run(args []string) error {
	dial, listen := rsock.Dial, func(network, addr string) (net.Listener, error) { return rsock.Listen(network, addr) }
	if len(args) > 0 && args[0] == "-t" {
		dial, listen = net.Dial, net.Listen
		args = args[1:]
	}
	if len(args) == 3 && args[0] == "-s" {
		l, err := listen("tcp", net.JoinHostPort(args[1], args[2]))
		if err != nil {
			return err
		}
		return serve(l)
	}
	if len(args) != 5 {
		return errors.New("usage: stream [-t] [-s] ADDR PORT [echo|send SIZE N]")
	}
	size, err1 := strconv.ParseUint(args[3], 10, 32)
	n, err2 := strconv.ParseUint(args[4], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	c, err := dial("tcp", net.JoinHostPort(args[0], args[1]))
	if err != nil {
		return err
	}
	defer c.Close()
	w := work{Size: size, N: n}
	if args[2] == "send" {
		w.OneWay = 1
	}
	return client(c, w)
}

func client(c net.Conn, w work) error {
	b := make([]byte, w.Size)
	took := make([]time.Duration, w.N)
	if err := binary.Write(c, binary.BigEndian, w); err != nil {
		return err
	}
	start := time.Now()
	for i := range took {
		begin := time.Now()
		if _, err := c.Write(b); err != nil {
			return err
		}
		if w.OneWay == 0 {
			if _, err := io.ReadFull(c, b); err != nil {
				return err
			}
		}
		took[i] = time.Since(begin)
	}
	if w.OneWay != 0 {
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return err
		}
	}
	all := time.Since(start)
	if _, err := c.Write(b[:1]); err != nil {
		return err
	}
	slices.Sort(took)
	fmt.Printf("bytes %d\nmicroseconds %d\nmedian %.1f\n", w.Size*w.N, all.Microseconds(), float64(took[len(took)/2].Nanoseconds())/1e3)
	return nil
}

// serve serves one connection after the other until the standard input ends.
func serve(l net.Listener) error {
	self.Ready(func() { os.Exit(0) })
	for {
		c, err := l.Accept()
		if err == nil {
			err = answer(c)
		}
		if err != nil {
			return err
		}
	}
}

func answer(c net.Conn) error {
	defer c.Close()
	var w work
	if err := binary.Read(c, binary.BigEndian, &w); err != nil {
		return err
	}
	b := make([]byte, w.Size)
	for range w.N {
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		if w.OneWay == 0 {
			if _, err := c.Write(b); err != nil {
				return err
			}
		}
	}
	if w.OneWay != 0 {
		if _, err := c.Write(b[:1]); err != nil {
			return err
		}
	}
	_, err := io.ReadFull(c, b[:1]) // which does not come before the answer has arrived
	return err
}
