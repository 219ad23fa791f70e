// Command msg-recv prints what msg-send sends, through callbacks, as ibmsg-recv of
// the C library ibmsg does.
//
//	msg-recv [-n MESSAGES] ADDRESS [PORT]
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs/rmsg"
)

func main() {
	var flags struct {
		Messages int    `short:"n" help:"End after so many messages, when their senders have gone."`
		Address  string `arg:"" help:"Where to listen."`
		Port     string `arg:"" optional:"" default:"12345" help:"Port; 0 takes a free one."`
	}
	kong.Parse(&flags)
	log.SetFlags(0)
	if err := run(net.JoinHostPort(flags.Address, flags.Port), flags.Messages); err != nil {
		log.Fatal(err)
	}
}

func run(addr string, messages int) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	// Setup
	got, open := 0, 0
	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{
		Request: func(r *rmsg.Request) {
			if _, err := r.Accept(rmsg.ConnOptions{}); err != nil {
				log.Print(err)
			}
		},
		Established: func(s *rmsg.Socket) {
			open++
			fmt.Println("connection established")
		},
		Message: func(s *rmsg.Socket, b *rmsg.Buffer) {
			got++
			fmt.Printf("message received: %s\n", b.Bytes())
			b.Free()
		},
		Disconnected: func(s *rmsg.Socket, why error) {
			fmt.Println("connection closed:", why)
			if open--; open <= 0 && messages > 0 && got >= messages {
				stop()
			}
		},
	}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, loop.Close()) }()

	// Listen
	listener, err := (&rmsg.ListenConfig{Loop: loop}).Listen(ctx, addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())

	// Event loop
	if err := loop.Run(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
