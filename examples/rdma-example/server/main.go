// Command server waits for one client of rdma-example, lends it memory, and
// ends when it disconnects.
//
//	server [-a ADDRESS] [-p PORT]
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

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/examples/rdma-example/exchange"
)

func main() {
	log.SetFlags(0)
	addr := flag.String("a", "", "address to listen on (default all)")
	port := flag.Int("p", exchange.DefaultPort, "port to listen on")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	l, err := cm.Listen(ctx, net.JoinHostPort(*addr, strconv.Itoa(*port)))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("Server is listening successfully at: %v \n", l.Addr())
	_, err = exchange.Serve(ctx, os.Stdout, l)
	l.Close()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("Server shut-down is complete ")
}
