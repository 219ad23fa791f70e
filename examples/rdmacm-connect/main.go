// Command rdmacm-connect makes a connection with the connection manager and
// sends one message over it.
//
//	rdmacm-connect server 0.0.0.0:18515
//	rdmacm-connect client 192.0.2.1:18515
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"

	"github.com/alecthomas/kong"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/uverbs"
)

var flags struct {
	Side string `arg:"" enum:"server,client" help:"server or client."`
	Addr string `arg:"" help:"Where to listen, or whom to call: an address of the RDMA device, and a port."`
}

func main() {
	kong.Parse(&flags)
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	side := server
	if flags.Side == "client" {
		side = client
	}
	if err := side(ctx, flags.Addr); err != nil {
		log.Fatal(err)
	}
}

func server(ctx context.Context, addr string) error {
	l, err := cm.Listen(ctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening on", l.Addr())
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	var inbox *uverbs.MR
	conn, err := req.Accept(ctx, cm.Options{Setup: func(e *cm.Endpoint) (err error) {
		// A message that finds no receive waits on RoCE, and ends the
		// connection on iWARP: so it is posted before the client can send.
		if inbox, err = e.AllocMR(64, verbs.AccessLocalWrite); err != nil {
			return err
		}
		_, err = e.QP.PostRecv(verbs.RecvWR{SGL: []verbs.SGE{inbox.SGE(0, 64)}})
		return err
	}})
	if err != nil {
		return err
	}
	defer conn.Close()
	n, err := complete(ctx, conn.RecvCQ)
	if err != nil {
		return err
	}
	fmt.Printf("received: %q\n", inbox.Bytes()[:n])
	return nil
}

func client(ctx context.Context, addr string) error {
	var d cm.Dialer
	conn, err := d.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	const message = "hello over rdmacm"
	send := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled, Inline: []byte(message)}
	if _, err := conn.QP.PostSend(send); err != nil {
		return err
	}
	if _, err := complete(ctx, conn.SendCQ); err != nil {
		return err
	}
	fmt.Printf("sent: %q\n", message)
	// Disconnecting at once might lose the message on iWARP: the server ends
	// the connection when it has it.
	select {
	case <-conn.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// complete waits for a completion and returns how long the message was.
func complete(ctx context.Context, cq *uverbs.CQ) (uint32, error) {
	wc, err := cq.Next(ctx)
	return wc.ByteLen, err
}
