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
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	roles := map[string]func(context.Context, string) error{"server": server, "client": client}
	if len(os.Args) != 3 || roles[os.Args[1]] == nil {
		log.Fatal("usage: rdmacm-connect server|client ADDRESS:PORT")
	}
	if err := roles[os.Args[1]](context.Background(), os.Args[2]); err != nil {
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
		// Post the receive before the client can send: a message that finds none waits on RoCE, and
		// ends the connection on iWARP.
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
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the client's machine may be gone
	defer cancel()
	wc, err := conn.RecvCQ.Next(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("received: %q\n", inbox.Bytes()[:wc.ByteLen])
	// The reply is empty. Whoever closes first may lose messages that are under way.
	if _, err := conn.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend}); err != nil {
		return err
	}
	select {
	case <-conn.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func client(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute) // the server may not answer
	defer cancel()
	d := cm.Dialer{Options: cm.Options{Setup: func(e *cm.Endpoint) error {
		_, err := e.QP.PostRecv(verbs.RecvWR{}) // for the reply
		return err
	}}}
	conn, err := d.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	const message = "hello over rdmacm"
	if _, err := conn.QP.PostSend(verbs.SendWR{Opcode: verbs.OpSend, Inline: []byte(message)}); err != nil {
		return err
	}
	if _, err := conn.RecvCQ.Next(ctx); err != nil {
		return err
	}
	fmt.Printf("sent: %q\n", message)
	return nil
}
