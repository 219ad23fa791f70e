// Command grpc serves gRPC's health service, or checks the health of a server, over RDMA
// if it is available, else over TCP:
//
//	grpc serve 10.9.0.1:8081
//	grpc check 10.9.0.1:8081
package main

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: grpc serve ADDR | grpc check ADDR")
	}
	do := check
	if os.Args[1] == "serve" {
		do = serve
	}
	if err := do(context.Background(), os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, addr string) error {
	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
	l, err := lc.Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	server := grpc.NewServer(grpc.UnaryInterceptor(func(ctx context.Context, in any, call *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		by := "tcp"
		if l.(*rsock.Listener).RDMA() {
			by = "rdma"
		}
		fmt.Println(call.FullMethod, "by", by)
		return next(ctx, in)
	}))
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	return server.Serve(l)
}

func check(ctx context.Context, addr string) error {
	dialer := rsock.Dialer{Fallback: rsock.FallbackMissing}
	client, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			return dialer.DialContext(ctx, "rdma", addr)
		}))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	answer, err := grpc_health_v1.NewHealthClient(client).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	if err != nil {
		return err
	}
	by := "rdma"
	if dialer.Stats().DialedTCP > 0 {
		by = "tcp"
	}
	fmt.Println(answer.Status, "by", by)
	return nil
}
