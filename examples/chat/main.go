// Command chat sends the lines of each client to all clients. The server is one event
// loop with callbacks; a slow client does not delay the others.
//
//	chat [-backlog MESSAGES] serve ADDRESS:PORT
//	chat ADDRESS:PORT NAME
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rmsg"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

var backlog = flag.Int("backlog", 1000, "messages that wait for a slow client before it is closed")

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	flag.Parse()
	err := errors.New("usage: chat [-backlog MESSAGES] serve ADDRESS:PORT, or chat ADDRESS:PORT NAME")
	if flag.NArg() == 2 && flag.Arg(0) == "serve" {
		err = serve(ctx, flag.Arg(1))
	} else if flag.NArg() == 2 {
		err = join(ctx, flag.Arg(0), flag.Arg(1))
	}
	if err != nil {
		log.Fatal(err)
	}
}

// room holds the clients, each with the messages that wait for its send queue.
type room map[*rmsg.Socket][][]byte

func serve(ctx context.Context, addr string) (err error) {
	r := make(room)
	// MaxMessage is below the clients' default, to leave room for a name.
	loop, err := rmsg.NewLoop(rmsg.Options{MaxMessage: 64 << 10, Callbacks: rmsg.Callbacks{
		Request: func(q *rmsg.Request) {
			if _, err := q.Accept(rmsg.ConnOptions{}); err != nil {
				log.Print(err)
			}
		},
		Established:  func(s *rmsg.Socket) { r[s] = nil },
		Message:      r.broadcast,
		Writable:     r.post,
		Sent:         func(_ *rmsg.Socket, b *rmsg.Buffer) { b.Free() },
		Disconnected: func(s *rmsg.Socket, _ error) { delete(r, s) },
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()
	listener, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	if err := loop.Run(ctx); ctx.Err() == nil {
		return err
	}

	err = listener.Close()
	for err == nil && len(r) > 0 {
		for s := range r {
			s.Disconnect()
		}
		_, err = loop.DispatchWait(context.Background())
	}
	return err
}

// broadcast queues a message for all clients. It is the Message callback.
func (r room) broadcast(from *rmsg.Socket, b *rmsg.Buffer) {
	message := fmt.Appendf(nil, "%s: %s", from.PrivateData(), b.Bytes())
	b.Free()
	for s, waiting := range r {
		if len(waiting) >= *backlog {
			log.Print(s, " is too slow")
			r.remove(s)
			continue
		}
		r[s] = append(waiting, message)
		if len(waiting) == 0 { // otherwise Writable is called later
			r.post(s)
		}
	}
}

// post sends the messages of a client until its send queue is full.
func (r room) post(s *rmsg.Socket) {
	for ; len(r[s]) > 0 && s.State() == rmsg.Established; r[s] = r[s][1:] {
		b, err := s.Alloc(len(r[s][0]))
		if err == nil {
			copy(b.Bytes(), r[s][0])
			if err = s.Post(b); err != nil {
				b.Free()
			}
		}
		if errors.Is(err, rmsg.ErrWouldBlock) {
			return
		}
		if err != nil {
			log.Print(s, ": ", err)
			r.remove(s)
			return
		}
	}
}

func (r room) remove(s *rmsg.Socket) {
	delete(r, s)
	s.Close()
}

// join sends the lines of standard input and prints what it receives.
func join(ctx context.Context, addr, name string) error {
	dialer := rmsg.Dialer{ConnOptions: rmsg.ConnOptions{PrivateData: []byte(name)}}
	s, err := dialer.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer s.Close()
	sent := make(chan error, 1)
	go func() {
		var err error
		lines := bufio.NewScanner(os.Stdin)
		for err == nil && lines.Scan() {
			err = s.Send(ctx, lines.Bytes())
		}
		if err = errors.Join(err, lines.Err()); err == nil {
			err = s.Shutdown(ctx)
		}
		sent <- err
		s.Close() // ends Messages
	}()
	for message, err := range s.Messages(ctx) {
		if errors.Is(err, verbs.ErrClosed) {
			return <-sent
		}
		if err != nil {
			return err
		}
		fmt.Printf("%s\n", message)
	}
	return nil // the server has disconnected
}
