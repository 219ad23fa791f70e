package rmsg_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"

	"github.com/goverbs/verbs/rmsg"
)

// Variables of the examples. TestExamples sets them.
var (
	ctx  = context.Background()
	addr = "10.9.0.1:7471"
)

// An echo server with callbacks. If the send queue has no room for an answer, the message
// waits and is not freed, which slows down its sender.
func ExampleCallbacks() {
	waiting := map[*rmsg.Conn][]*rmsg.Buffer{}
	answer := func(s *rmsg.Conn) {
		for len(waiting[s]) > 0 {
			b := waiting[s][0]
			a, err := s.Alloc(len(b.Bytes()))
			if err == nil {
				copy(a.Bytes(), b.Bytes())
				if err = s.Post(a); err != nil {
					a.Free()
				}
			}
			if errors.Is(err, rmsg.ErrWouldBlock) {
				return // until Writable is called
			}
			if err != nil {
				log.Print(err)
			}
			waiting[s] = waiting[s][1:]
			b.Free() // lets the peer send another
		}
	}
	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
		Request: func(r *rmsg.Request) { r.Accept(nil) },
		Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
			waiting[s] = append(waiting[s], b)
			answer(s)
		},
		Sent:     func(s *rmsg.Conn, b *rmsg.Buffer) { b.Free() },
		Writable: answer,
		Disconnected: func(s *rmsg.Conn, why error) {
			for _, b := range waiting[s] {
				b.Free()
			}
			delete(waiting, s)
			fmt.Println("disconnected:", why)
		},
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	if _, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, addr); err != nil {
		log.Fatal(err)
	}
	if err := loop.Run(ctx); !errors.Is(err, context.Canceled) {
		log.Fatal(err)
	}
}

// A client of the echo server, with blocking calls.
func ExampleDial() {
	s, err := rmsg.Dial(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Send(ctx, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	b, err := s.Recv(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b.Bytes())
	b.Free()
	if err := s.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
}

// A server with blocking calls and a goroutine for each connection.
func ExampleListener_Accept() {
	ln, err := rmsg.Listen(ctx, addr)
	if err != nil {
		log.Fatal(err)
	}
	defer ln.Close()
	for {
		s, err := ln.Accept(ctx)
		if err != nil { // ctx has ended, for example
			return
		}
		go func() {
			defer s.Close()
			for {
				b, err := s.Recv(ctx)
				if err != nil {
					if err != io.EOF { // the peer has disconnected
						log.Print(err)
					}
					return
				}
				fmt.Printf("%s\n", b.Bytes())
				b.Free()
			}
		}()
	}
}

// A program with one goroutine that dispatches the loop itself, as those of ibmsg do.
func ExampleLoop_Dispatch() {
	loop, err := rmsg.NewLoop(rmsg.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer loop.Close()
	s, err := (&rmsg.Dialer{Loop: loop}).Connect(addr)
	if err != nil {
		log.Fatal(err)
	}
	for s.State() == rmsg.Connecting {
		if _, err := loop.Dispatch(ctx); err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(s.State())
}
