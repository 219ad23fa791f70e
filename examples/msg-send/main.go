// Command msg-send sends a text to msg-recv. Its only goroutine dispatches the event loop
// itself, as ibmsg-send of the C library ibmsg does.
//
//	msg-send ADDRESS [PORT] [TEXT]
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 3 {
		log.Fatal("usage: msg-send ADDRESS [PORT] [TEXT]")
	}
	addr, text := net.JoinHostPort(flag.Arg(0), cmp.Or(flag.Arg(1), "12345")), cmp.Or(flag.Arg(2), "hello")
	if err := run(addr, text); err != nil {
		log.Fatal(err)
	}
}

func run(addr, text string) (err error) {
	// Setup
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()

	// Connect
	conn, err := (&rmsg.Dialer{Loop: loop}).Connect(addr)
	if err != nil {
		return err
	}
	if err := dispatchWhile(loop, func() bool { return conn.State() == rmsg.Connecting }); err != nil {
		return err
	}
	if err := conn.Err(); err != nil {
		return err
	}

	// Data transfer
	buf, err := conn.Alloc(len(text))
	if err != nil {
		return err
	}
	copy(buf.Bytes(), text)
	if err := conn.Post(buf); err != nil {
		return err
	}
	if err := dispatchWhile(loop, func() bool { return buf.Status() == rmsg.Queued }); err != nil {
		return err
	}
	if err := errors.Join(buf.Err(), buf.Free()); err != nil {
		return err
	}

	// Disconnect, when the other side has everything
	conn.Disconnect()
	if err := dispatchWhile(loop, func() bool { return conn.State() != rmsg.Disconnected }); err != nil {
		return err
	}
	if err := conn.Err(); !errors.Is(err, verbs.ErrClosed) {
		return err
	}
	fmt.Printf("%d bytes sent\n", len(text))
	return nil
}

// dispatchWhile waits for events and dispatches them while a condition holds.
func dispatchWhile(loop *rmsg.Loop, condition func() bool) error {
	for condition() {
		if _, err := loop.Dispatch(context.Background()); err != nil {
			return err
		}
	}
	return nil
}
