// Command container is a service made for containers, which docs/deploy.md builds and starts:
//
//	ADDR=10.9.0.1:8080 container          serve HTTP over RDMA if it is available, else over TCP
//	ADDR=10.9.0.1:8080 container check    ask the server for its health: exit status 0 or 1
//
// It logs JSON, needs no files, and shuts down gracefully when it is stopped. An image with
// nothing but this program has no curl, so the program checks itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft" // VERBS_SOFT makes a device in user space
)

func main() {
	slog.SetDefault(slog.New(slog.NewJSONHandler(os.Stdout, nil)))
	addr := os.Getenv("ADDR")
	do := serve
	if len(os.Args) == 2 && os.Args[1] == "check" {
		do = check
	} else if len(os.Args) != 1 || addr == "" {
		fmt.Fprintln(os.Stderr, "usage: ADDR=HOST:PORT container [check]")
		os.Exit(2)
	}
	if err := do(addr); err != nil {
		slog.Error("failed", "err", err)
		os.Exit(1)
	}
}

func serve(addr string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing, Logger: slog.Default()}
	l, err := lc.Listen(ctx, "rdma", addr)
	if err != nil {
		return err
	}
	http.HandleFunc("/health", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "ok by", network(r))
	})
	http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		slog.Info("request", "path", r.URL.Path, "remote", r.RemoteAddr, "network", network(r))
		fmt.Fprintf(w, "hello %s\n", strings.TrimPrefix(r.URL.Path, "/"))
	})
	slog.Info("serving", "addr", l.Addr().String())
	server := http.Server{
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			_, rdma := c.(*rsock.Conn)
			return context.WithValue(ctx, byRDMA{}, rdma)
		},
		ReadHeaderTimeout: 10 * time.Second, // idle clients do not keep their connections
		IdleTimeout:       2 * time.Minute,
	}
	ended := make(chan error, 1)
	context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 8*time.Second) // docker kills after 10
		defer cancel()
		ended <- errors.Join(server.Shutdown(ctx), l.(*rsock.Listener).Shutdown(ctx))
	})
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	slog.Info("shut down")
	return <-ended
}

// byRDMA is the key of whether a request has come by RDMA.
type byRDMA struct{}

// network returns the network of a request: "rdma" or "tcp".
func network(r *http.Request) string {
	if r.Context().Value(byRDMA{}) == true {
		return "rdma"
	}
	return "tcp"
}

func check(addr string) error {
	dialer := rsock.Dialer{Fallback: rsock.FallbackMissing}
	client := http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext},
		Timeout:   5 * time.Second,
	}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + addr + "/health")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answered %s", resp.Status)
	}
	return nil
}
