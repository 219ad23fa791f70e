//go:build linux

package rmsg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync"

	"github.com/goverbs/verbs/rmsg"
)

var ctx = context.Background()

// anyPort is any free port of a device in user space in this process, or of the lab's rxe0.
const anyPort = "10.9.0.1:0"

// A server with blocking calls and a goroutine for each connection, and its client.
func Example() {
	ln, err := rmsg.Listen(ctx, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := ln.Accept(ctx)
			if err != nil { // when ln is closed
				return
			}
			serving.Go(func() {
				defer c.Close()
				for {
					b, err := c.Recv(ctx)
					if err != nil {
						if err != io.EOF { // the peer has disconnected
							log.Print(err)
						}
						return
					}
					fmt.Printf("%s\n", b.Bytes())
					b.Free() // lets the peer send another
				}
			})
		}
	})

	c, err := rmsg.Dial(ctx, ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	for _, text := range []string{"one", "two"} {
		if err := c.Send(ctx, []byte(text)); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.Shutdown(ctx); err != nil { // the peer has taken both
		log.Fatal(err)
	}
	ln.Close()
	serving.Wait()
	// Output:
	// one
	// two
}

// An echo server with callbacks. If the send queue has no room for an answer, the message
// waits and is not freed, which slows down its sender.
func ExampleCallbacks() {
	waiting := map[*rmsg.Conn][]*rmsg.Buffer{}
	answer := func(c *rmsg.Conn) {
		for len(waiting[c]) > 0 {
			b := waiting[c][0]
			a, err := c.Alloc(len(b.Bytes()))
			if err == nil {
				copy(a.Bytes(), b.Bytes())
				if err = c.Post(a); err != nil {
					a.Free()
				}
			}
			if errors.Is(err, rmsg.ErrWouldBlock) {
				return // until Writable is called
			}
			if err != nil {
				log.Print(err)
			}
			waiting[c] = waiting[c][1:]
			b.Free() // lets the peer send another
		}
	}
	ended := make(chan bool)
	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
		Request: func(r *rmsg.Request) { r.Accept(nil) },
		Message: func(c *rmsg.Conn, b *rmsg.Buffer) {
			waiting[c] = append(waiting[c], b)
			answer(c)
		},
		Sent:     func(c *rmsg.Conn, b *rmsg.Buffer) { b.Free() },
		Writable: answer,
		Disconnected: func(c *rmsg.Conn, why error) {
			for _, b := range waiting[c] {
				b.Free()
			}
			delete(waiting, c)
			fmt.Println("disconnected:", why)
			close(ended)
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	ln, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var run sync.WaitGroup
	run.Go(func() {
		if err := loop.Run(running); !errors.Is(err, context.Canceled) {
			log.Fatal(err)
		}
	})

	c, err := rmsg.Dial(ctx, ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Send(ctx, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	b, err := c.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.Bytes())
	b.Free()
	if err := c.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	<-ended
	stop()
	run.Wait()
	// Output:
	// hello
	// disconnected: EOF
}

// serve accepts one connection with a configuration, passes it to handle, and returns an address to
// dial.
func serve(config rmsg.ListenConfig, handle func(c *rmsg.Conn)) (addr string, wait func()) {
	ln, err := config.Listen(ctx, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		c, err := ln.Accept(ctx)
		if err != nil {
			log.Fatal(err)
		}
		handle(c)
		c.Close()
		ln.Close()
	})
	return ln.Addr().String(), served.Wait
}

// echo answers every message.
func echo(c *rmsg.Conn) {
	for {
		b, err := c.Recv(ctx)
		if err != nil {
			return
		}
		if err := c.Send(ctx, b.Bytes()); err != nil {
			log.Print(err)
		}
		b.Free()
	}
}

// A program with one goroutine that dispatches the loop itself, as those of ibmsg do.
func ExampleLoop_Dispatch() {
	addr, wait := serve(rmsg.ListenConfig{}, echo)
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		log.Fatal(err)
	}
	c, err := (&rmsg.Dialer{Loop: loop}).Connect(addr)
	if err != nil {
		log.Fatal(err)
	}
	for c.State() == rmsg.Connecting {
		if _, err := loop.Dispatch(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(c.State())
	c.Disconnect()
	for c.State() != rmsg.Disconnected {
		if _, err := loop.Dispatch(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(c.State())
	loop.Close()
	wait()
	// Output:
	// established
	// disconnected
}

// A message above Options.Eager is announced, and read by the peer from the sender's memory.
func ExampleConn_Send() {
	addr, wait := serve(rmsg.ListenConfig{}, echo)
	c, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	if err := c.Send(ctx, make([]byte, 1<<20)); err != nil {
		log.Fatal(err)
	}
	b, err := c.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(b.Bytes()), "bytes,", c.Stats().LargeSent, "announced")
	b.Free()
	c.Close()
	wait()
	// Output: 1048576 bytes, 1 announced
}

// A message that is written where it is sent from, without a copy.
func ExampleConn_Alloc() {
	addr, wait := serve(rmsg.ListenConfig{}, echo)
	c, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	a, err := c.Alloc(100)
	if err != nil {
		log.Fatal(err)
	}
	if err := a.SetLen(copy(a.Bytes(), "in place")); err != nil {
		log.Fatal(err)
	}
	if err := c.Post(a); err != nil {
		log.Fatal(err)
	}
	b, err := c.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.Bytes())
	b.Free()
	c.Close()
	wait()
	// Output: in place
}

// Both sides say what they are before they send.
func ExampleRequest_Accept() {
	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{Request: func(r *rmsg.Request) {
		r.Accept([]byte("server 7"))
	}}})
	if err != nil {
		log.Fatal(err)
	}
	running, stop := context.WithCancel(ctx)
	var run sync.WaitGroup
	run.Go(func() { loop.Run(running) })
	ln, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, anyPort)
	if err != nil {
		log.Fatal(err)
	}
	c, err := (&rmsg.Dialer{PrivateData: []byte("client 3")}).Dial(ctx, ln.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.8s\n", c.PrivateData()) // padded with zeros on RoCE
	c.Close()
	stop()
	run.Wait()
	loop.Close()
	// Output: server 7
}

// A message that the peer would not take is refused before it is sent.
func ExampleConn_MaxMessage() {
	addr, wait := serve(rmsg.ListenConfig{Options: rmsg.Options{MaxMessage: 4096}}, echo)
	c, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.MaxMessage(), errors.Is(c.Send(ctx, make([]byte, 5000)), rmsg.ErrTooLarge))
	c.Close()
	wait()
	// Output: 4096 true
}

// A peer that disconnects has sent everything: Recv returns that first, and then io.EOF.
func ExampleConn_Recv() {
	addr, wait := serve(rmsg.ListenConfig{}, func(c *rmsg.Conn) {
		c.Send(ctx, []byte("the last words"))
		c.Shutdown(ctx) // waits until it is taken
	})
	c, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	for {
		b, err := c.Recv(ctx)
		if err != nil {
			fmt.Println(err == io.EOF)
			break
		}
		fmt.Printf("%s\n", b.Bytes())
		b.Free()
	}
	c.Close()
	wait()
	// Output:
	// the last words
	// true
}

// A context ends a call that waits; the connection goes on.
func ExampleDial() {
	addr, wait := serve(rmsg.ListenConfig{}, echo)
	c, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = c.Recv(ended)
	fmt.Println(errors.Is(err, context.Canceled), c.State())
	c.Close()
	wait()
	// Output: true established
}

// What a dialer's connections have sent in all.
func ExampleDialer_Stats() {
	addr, wait := serve(rmsg.ListenConfig{}, echo)
	var dialer rmsg.Dialer
	c, err := dialer.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		if err := c.Send(ctx, []byte("0123456789")); err != nil {
			log.Fatal(err)
		}
		b, err := c.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		b.Free()
	}
	if err := c.Shutdown(ctx); err != nil { // waits until all have arrived, and count as sent
		log.Fatal(err)
	}
	wait()
	s := dialer.Stats()
	fmt.Println(s.Dials, "dial,", s.Conns.MessagesSent, "messages,", s.Conns.BytesSent, "bytes")
	// Output: 1 dial, 3 messages, 30 bytes
}
