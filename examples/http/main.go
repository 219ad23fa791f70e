// Command http serves and gets a page over RDMA if it is available, else over TCP:
//
//	http serve 10.9.0.1:8080
//	http get http://10.9.0.1:8080/world
//
// An interrupted server shuts down gracefully: it accepts no more requests, and ends when it has
// answered all.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
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
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: http serve ADDR | http get URL")
	}
	do := get
	if os.Args[1] == "serve" {
		do = serve
	}
	if err := do(os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func serve(addr string) error {
	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
	l, err := lc.Listen(context.Background(), "rdma", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	server := http.Server{
		Handler: http.HandlerFunc(answer),
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, network{}, networkOf(c))
		},
		ReadHeaderTimeout: 10 * time.Second, // idle clients do not keep their connections
		IdleTimeout:       2 * time.Minute,
	}
	interrupted, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	done := make(chan error, 1)
	context.AfterFunc(interrupted, func() {
		fmt.Println("shutting down")
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done <- errors.Join(server.Shutdown(ctx), l.(*rsock.Listener).Shutdown(ctx))
	})
	if err := server.Serve(l); err != http.ErrServerClosed {
		return err
	}
	return <-done
}

// network is the context key of a request's network.
type network struct{}

// networkOf tells RDMA from TCP, whose addresses have the same type.
func networkOf(c net.Conn) string {
	if _, ok := c.(*rsock.Conn); ok {
		return "rdma"
	}
	return "tcp"
}

// answer first waits for the time in the parameter wait.
func answer(w http.ResponseWriter, r *http.Request) {
	fmt.Println(r.URL.Path, "by", r.Context().Value(network{}))
	if wait, err := time.ParseDuration(r.FormValue("wait")); err == nil {
		time.Sleep(wait)
	}
	fmt.Fprintf(w, "hello %s\n", strings.TrimPrefix(r.URL.Path, "/"))
}

func get(url string) error {
	dialer := rsock.Dialer{Fallback: rsock.FallbackMissing}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, addr)
			if err == nil {
				fmt.Println("connected by", networkOf(c))
			}
			return c, err
		},
	}}
	defer client.CloseIdleConnections()
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answered %s", resp.Status)
	}
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}
