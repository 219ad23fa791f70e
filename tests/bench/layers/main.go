// Command layers sends messages in one direction with package rconn or rmsg, as programs
// that use them would, and prints how long that took.
//
//	layers rconn|rmsg -s ADDR PORT        serve until the standard input ends
//	layers rconn|rmsg    ADDR PORT SIZE N N messages of SIZE bytes
//
// The client connects, and does its work once for each line of its standard input: it sends
// a message that wakes the server, and then, timed, all messages until the server has
// received them.
package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/goverbs/verbs/tests/bench/self"
)

func main() {
	log.SetFlags(0)
	if err := run(os.Args[1:]); err != nil {
		log.Fatal("layers: ", err)
	}
}

// work is the work of a client, which it sends in its private data.
type work struct{ Size, N uint32 }

func (w *work) bytes() []byte {
	b, _ := binary.Append(nil, binary.NativeEndian, w)
	return b
}

// workOf returns the work in private data.
func workOf(b []byte) (w work, err error) {
	_, err = binary.Decode(b, binary.NativeEndian, &w)
	return w, err
}

// layer is a package with which to send.
type layer struct {
	// serve serves clients, and calls ready when it has started.
	serve func(ctx context.Context, addr string, ready func()) error
	dial  func(ctx context.Context, addr string, w work) (sender, error)
}

type sender interface {
	// send returns when the server has received n messages.
	send(ctx context.Context, n int) error
	close() error
}

var layers = map[string]layer{"rconn": {serveConn, dialConn}, "rmsg": {serveMsg, dialMsg}}

func run(args []string) error {
	ctx := context.Background()
	if len(args) < 4 || layers[args[0]].serve == nil {
		return errors.New("usage: layers rconn|rmsg -s ADDR PORT | ADDR PORT SIZE N")
	}
	l := layers[args[0]]
	if args[1] == "-s" {
		return l.serve(ctx, net.JoinHostPort(args[2], args[3]), func() { self.Ready(func() { os.Exit(0) }) })
	}
	var w work
	for i, field := range []*uint32{&w.Size, &w.N}[:len(args)-3] {
		v, err := strconv.ParseUint(args[3+i], 10, 32)
		if err != nil {
			return err
		}
		*field = uint32(v)
	}
	s, err := l.dial(ctx, net.JoinHostPort(args[1], args[2]), w)
	if err != nil {
		return err
	}
	err = self.Again(func(out *bufio.Writer) error {
		if err := s.send(ctx, 1); err != nil {
			return err
		}
		start := time.Now()
		if err := s.send(ctx, int(w.N)); err != nil {
			return err
		}
		fmt.Fprintf(out, "nanoseconds %d\nbytes %d\n", time.Since(start), uint64(w.N)*uint64(w.Size))
		return nil
	})
	return errors.Join(err, s.close())
}
