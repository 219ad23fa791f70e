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
	"net"
	"time"

	"github.com/goverbs/verbs/rsock"
	"github.com/goverbs/verbs/tests/bench/self"
)

func main() { self.Main("stream", "echo|send SIZE N", serve, client) }

// work is sent first in a round.
type work struct{ OneWay, Size, N uint64 }

func client(addr string, args []string) error {
	var w work
	if err := self.Numbers(args[1:], &w.Size, &w.N); err != nil {
		return err
	}
	if args[0] == "send" {
		w.OneWay = 1
	}
	c, err := rsock.Dial("tcp", addr)
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
		self.Took(out, took)
	}
	return nil
}

// serve serves one connection after the other until the standard input ends.
func serve(addr string) error {
	l, err := rsock.Listen("tcp", addr)
	if err != nil {
		return err
	}
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
