// Command s3 stores objects as S3 does, and moves their bytes by RDMA. Requests and answers are
// HTTP, so curl works as well. A client that has RDMA offers its memory in a header, as
// cuObject, MinIO and versitygw have it; the server writes an object to it, or reads one from it:
//
//	client                                          server
//	GET /bucket/key, x-amz-rdma-token ──── HTTP ──► staging regions ◄─ store
//	memory ◄═══════════════ RDMA WRITE ════════════ part
//	memory ◄═══════════════ RDMA WRITE ════════════ part, with immediate data
//	◄────────── HTTP 200, x-amz-rdma-reply: 200 ───
//
//	PUT /bucket/key, x-amz-rdma-token ──── HTTP ──►
//	memory ═════════════════ RDMA READ ═══════════► staging regions ─► store
//	◄────────── HTTP 200, x-amz-rdma-reply: 200 ───
//
// Without a token, or where the server declines it, the bytes are the body of HTTP. CRC-32C is
// checked at both ends. There is no authentication: everybody who reaches the server can use it.
//
//	s3 serve [-rdma 192.0.2.1:9001] 192.0.2.1:9000
//	s3 put http://192.0.2.1:9000 BUCKET/KEY FILE
//	s3 get http://192.0.2.1:9000 BUCKET/KEY FILE
//	s3 bench [-clients 8] [-size 1048576] [-for 5s] http://192.0.2.1:9000
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/goverbs/verbs"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	context.AfterFunc(ctx, stop) // a second signal ends the process
	flags := flag.NewFlagSet("s3", flag.ExitOnError)
	rdma := flags.String("rdma", "", "RDMA `address` of the server, by default its HTTP address at a free port")
	var load load
	flags.IntVar(&load.clients, "clients", 8, "transfers at a time")
	flags.IntVar(&load.size, "size", 1<<20, "bytes of an object")
	flags.DurationVar(&load.time, "for", 5*time.Second, "time of each measurement")
	err := errors.New("usage: s3 serve [-rdma ADDR] ADDR | put URL BUCKET/KEY FILE | get URL BUCKET/KEY FILE | bench [-clients N] [-size N] [-for D] URL")
	if len(os.Args) > 1 {
		flags.Parse(os.Args[2:])
		switch arg := flags.Arg; {
		case os.Args[1] == "serve" && flags.NArg() == 1:
			err = serve(ctx, arg(0), *rdma)
		case (os.Args[1] == "put" || os.Args[1] == "get") && flags.NArg() == 3:
			err = copyFile(ctx, os.Args[1], arg(0), arg(1), arg(2))
		case os.Args[1] == "bench" && flags.NArg() == 1:
			err = load.run(ctx, arg(0))
		}
	}
	if err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, addr, rdma string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return err
	}
	if rdma == "" {
		rdma = net.JoinHostPort(host, "0")
	}
	s := newServer(maxStored)
	switch s.rdma, err = listenRDMA(ctx, nil, rdma, staging{regions: 32, size: 1 << 20}); {
	case errors.Is(err, verbs.ErrNoRDMA):
		log.Printf("serving by HTTP only: %v", err)
	case err != nil:
		return err
	default:
		defer s.rdma.close()
	}
	fmt.Println("listening on", l.Addr())
	web := &http.Server{Handler: s, ReadTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { web.Shutdown(context.Background()) })()
	if err := web.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// copyFile puts a file, or gets an object to one.
func copyFile(ctx context.Context, op, url, name, file string) error {
	c, err := newClient(ctx, nil, url, nil)
	if err != nil {
		return err
	}
	defer c.close()
	if op == "put" {
		if c.mem, err = os.ReadFile(file); err == nil {
			err = c.put(ctx, name, len(c.mem))
		}
	} else if c.mem, err = c.memoryFor(ctx, name); err == nil {
		if _, err = c.get(ctx, name); err == nil {
			err = os.WriteFile(file, c.mem, 0o666)
		}
	}
	if err == nil {
		fmt.Printf("%d bytes by %s\n", len(c.mem), c.by)
	}
	return err
}
