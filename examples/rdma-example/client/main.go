// Command client writes a string into the memory of rdma-example's server,
// reads it back, and compares.
//
//	client [-a ADDRESS] [-p PORT] -s STRING
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"strconv"

	"github.com/goverbs/verbs/examples/rdma-example/exchange"
)

func main() {
	log.SetFlags(0)
	addr := flag.String("a", "127.0.0.1", "the server's address")
	port := flag.Int("p", exchange.DefaultPort, "the server's port")
	text := flag.String("s", "", "string to copy (required)")
	flag.Parse()
	if *text == "" {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := exchange.Client(ctx, os.Stdout, net.JoinHostPort(*addr, strconv.Itoa(*port)), *text)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("Client resource clean up is complete ")
}
