// Command msg-recv prints the messages of msg-send. It uses callbacks, as ibmsg-recv of
// the C library ibmsg does.
//
//	msg-recv [-n MESSAGES] ADDRESS [PORT]
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"

	"github.com/goverbs/verbs/rmsg"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	messages := flag.Int("n", 0, "end after so many `messages`, when their senders have gone")
	flag.Parse()
	if flag.NArg() < 1 || flag.NArg() > 2 {
		log.Fatal("usage: msg-recv [-n MESSAGES] ADDRESS [PORT]")
	}
	port := cmp.Or(flag.Arg(1), "12345") // 0 means a free port
	if err := run(net.JoinHostPort(flag.Arg(0), port), *messages); err != nil {
		log.Fatal(err)
	}
}

func run(addr string, messages int) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	got, open := 0, map[*rmsg.Conn]bool{}
	callbacks := rmsg.Callbacks{
		Request: func(r *rmsg.Request) {
			if _, err := r.Accept(nil); err != nil {
				log.Print(err)
			}
		},
		Established: func(s *rmsg.Conn) {
			open[s] = true
			fmt.Println("connection established")
		},
		Message: func(s *rmsg.Conn, b *rmsg.Buffer) {
			got++
			fmt.Printf("message received: %s\n", b.Bytes())
			b.Free()
		},
		Disconnected: func(s *rmsg.Conn, why error) {
			if !open[s] {
				log.Print("connection failed: ", why)
				return
			}
			fmt.Println("connection closed:", why)
			if delete(open, s); len(open) == 0 && messages > 0 && got >= messages {
				stop()
			}
		},
	}
	// The listener has its own event loop, which a goroutine runs.
	listener, err := (&rmsg.ListenConfig{Options: rmsg.Options{Callbacks: callbacks}}).Listen(ctx, addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", listener.Addr())
	<-ctx.Done()
	return listener.Loop().Close()
}
