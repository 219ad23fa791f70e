// Command client writes a string into the memory of rdma-example's server with RDMA WRITE,
// reads it back with RDMA READ, and compares. Neither involves the server's program.
//
//	client [-a ADDRESS] [-p PORT] -s STRING
//
//	client                                   server
//	Dial ──────────── connect ─────────────► Listen, Accept
//	buffer attributes ───── SEND ──────────► allocates a buffer of that size
//	◄───────────────────── SEND ──────────── buffer attributes
//	source ───────────── RDMA WRITE ───────► buffer
//	destination ◄──────── RDMA READ ──────── buffer
//	compare; Close ─────────────────────────► Done
package main

import (
	"bytes"
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
		fmt.Printf("Usage:\nrdma_client: [-a <server_addr>] [-p <server_port>] -s string (required)\n(default IP is 127.0.0.1 and port is %s)\n", exchange.DefaultPort)
		os.Exit(1)
	}
	addr := flag.String("a", "127.0.0.1", "")
	port := flag.String("p", exchange.DefaultPort, "")
	text := flag.String("s", "", "")
	flag.Parse()
	if *text == "" {
		fmt.Println("Please provide a string to copy ")
		flag.Usage()
	}
	fmt.Printf("Passed string is : %s , with count %d \n", *text, len(*text))
	if err := run(net.JoinHostPort(*addr, *port), *text); err != nil {
		log.Fatal(err)
	}
	fmt.Println("Client resource clean up is complete ")
}

func run(addr, text string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // a server that does not answer
	defer cancel()
	// Connect. The connection manager finds the device that leads to the address, and makes
	// what the connection needs on it: PD, CQs and QP. A QP is two queues of requests to
	// the device, one of sends and RDMA, one of receives.
	var inbox *uverbs.MR
	d := cm.Dialer{Options: cm.Options{
		Prepare: func(r cm.Route, _ *cm.Options) error { // the device is known
			fmt.Printf("Trying to connect to server at : %v port: %d \n", r.Remote.Addr(), r.Remote.Port())
			return nil
		},
		Setup: exchange.PostRecv(&inbox), // the QP exists, and the server cannot send yet
	}}
	conn, err := d.Dial(ctx, addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Println("The client is connected successfully ")

	// Exchange descriptions of buffers. The server needs only the length of the client's.
	source, err := conn.AllocMR(len(text), verbs.AccessLocalWrite|verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	copy(source.Bytes(), text)
	if err := exchange.Send(ctx, conn, source); err != nil {
		return err
	}
	server, err := exchange.Recv(ctx, conn, inbox)
	if err != nil {
		return err
	}
	fmt.Println(server)

	// Write the source to the server's memory. The READ that follows returns it,
	// since the requests of a QP are executed in order.
	wr := verbs.SendWR{
		Opcode: verbs.OpRDMAWrite, SGL: []verbs.SGE{source.SGE(0, len(text))},
		RemoteAddr: server.Addr, RKey: server.Key,
	}
	if err := exchange.Do(ctx, conn, wr); err != nil {
		return err
	}
	// Read it back into other memory. On iWARP the peer writes the answer to a READ,
	// which requires AccessRemoteWrite.
	destination, err := conn.AllocMR(len(text), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	wr.Opcode, wr.SGL = verbs.OpRDMARead, []verbs.SGE{destination.SGE(0, len(text))}
	if err := exchange.Do(ctx, conn, wr); err != nil {
		return err
	}
	if !bytes.Equal(source.Bytes(), destination.Bytes()) {
		return errors.New("src and dst buffers do not match")
	}
	fmt.Println("...\nSUCCESS, source and destination buffers match ")
	return conn.Close() // also closes its QP, CQs, PD and regions
}
