// Command server lends memory to rdma-example's client, and ends when it disconnects.
//
//	server [-a ADDRESS] [-p PORT]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/examples/rdma-example/exchange"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
	"github.com/goverbs/verbs/uverbs"
)

func main() {
	log.SetFlags(0)
	flag.Usage = func() {
		fmt.Printf("Usage:\nrdma_server: [-a <server_addr>] [-p <server_port>]\n(default port is %s)\n", exchange.DefaultPort)
		os.Exit(1)
	}
	addr := flag.String("a", "0.0.0.0", "")
	port := flag.String("p", exchange.DefaultPort, "")
	flag.Parse()
	if err := run(net.JoinHostPort(*addr, *port)); err != nil {
		log.Fatal(err)
	}
	fmt.Println("Server shut-down is complete ")
}

func run(addr string) error {
	ctx := context.Background()
	l, err := cm.Listen(ctx, addr) // on all devices, or on that of addr
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Printf("Server is listening successfully at: %v , port: %d \n", l.Addr().Addr(), l.Addr().Port())
	req, err := l.Accept(ctx)
	if err != nil {
		return err
	}
	// The client sends as soon as it is accepted, so the receive is posted before that.
	var inbox *uverbs.MR
	conn, err := req.Accept(ctx, cm.Options{Setup: exchange.PostRecv(&inbox)})
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Printf("A new connection is accepted from %v \n", conn.RemoteAddr().Addr())

	ctx, cancel := context.WithTimeout(ctx, time.Minute) // a client that does not send what it should
	defer cancel()
	client, err := exchange.Recv(ctx, conn, inbox)
	if err != nil {
		return err
	}
	fmt.Println("Client side buffer information is received...")
	fmt.Println(client)
	fmt.Printf("The client has requested buffer length of : %d bytes \n", client.Len)
	// The buffer: its access rights allow the client to write and read it.
	buffer, err := conn.AllocMR(int(client.Len), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	if err := exchange.Send(ctx, conn, buffer); err != nil {
		return err
	}
	// This program does no more: its device answers the client's requests.
	select {
	case <-conn.Done():
	case <-ctx.Done(): // nothing tells that a machine is gone, see cm.Options.KeepAlive
		return ctx.Err()
	}
	if err := conn.Err(); !errors.Is(err, verbs.ErrDisconnected) {
		return err
	}
	fmt.Println("A disconnect event is received from the client...")
	return conn.Close()
}
