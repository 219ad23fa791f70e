// Command stream sends bytes with package rsock, as c/stream.c does with rsockets, and prints how
// long that took. Both take the same arguments and print the same; the comments of the C program
// describe them. There is no -t: the figures of TCP are C's.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/bench/self"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("stream: ", err)
	}
}

// work is sent first in a round.
type work struct{ OneWay, Size, N uint64 }

func run(args []string) error {
	if len(args) == 3 && args[0] == "-s" {
		l, err := rsock.Listen("tcp", net.JoinHostPort(args[1], args[2]))
		if err != nil {
			return err
		}
		return serve(l)
	}
	if len(args) != 5 {
		return errors.New("usage: stream -s ADDR PORT | ADDR PORT echo|send SIZE N")
	}
	size, err1 := strconv.ParseUint(args[3], 10, 32)
	n, err2 := strconv.ParseUint(args[4], 10, 32)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	w := work{Size: size, N: n}
	if args[2] == "send" {
		w.OneWay = 1
	}
	c, err := rsock.Dial("tcp", net.JoinHostPort(args[0], args[1]))
	if err != nil {
		return err
	}
	defer c.Close()
	b := make([]byte, w.Size)
	took := make([]time.Duration, w.N)
	return self.Again(func(out *bufio.Writer) error { return w.measure(c, b, took, out) })
}

// measure does the work once, and prints how long it took.
func (w *work) measure(c net.Conn, b []byte, took []time.Duration, out *bufio.Writer) error {
	if err := binary.Write(c, binary.NativeEndian, w); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, b[:1]); err != nil {
		return err
	}
	start := time.Now()
	var last time.Duration
	for i := range took {
		if _, err := c.Write(b); err != nil {
			return err
		}
		if w.OneWay != 0 {
			continue
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return err
		}
		t := time.Since(start)
		took[i] = t - last
		last = t
	}
	if w.OneWay != 0 {
		if _, err := io.ReadFull(c, b[:1]); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "nanoseconds %d\nbytes %d\n", time.Since(start), w.Size*w.N)
	if w.OneWay == 0 {
		fmt.Fprint(out, "took")
		for _, t := range took {
			fmt.Fprintf(out, " %d", t)
		}
		fmt.Fprintln(out)
	}
	return nil
}

// serve serves one connection after the other until the standard input ends.
func serve(l net.Listener) error {
	self.Ready()
	for {
		c, err := l.Accept()
		if err == nil {
			err = serveOne(c)
		}
		if err != nil {
			return err
		}
	}
}

func serveOne(c net.Conn) error {
	defer c.Close()
	for {
		var w work
		err := binary.Read(c, binary.NativeEndian, &w)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = w.answer(c)
		}
		if err != nil {
			return err
		}
	}
}

// answer does the server's part of a round.
func (w *work) answer(c net.Conn) error {
	b := make([]byte, w.Size)
	if _, err := c.Write(b[:1]); err != nil {
		return err
	}
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
	if w.OneWay == 0 {
		return nil
	}
	_, err := c.Write(b[:1])
	return err
}
