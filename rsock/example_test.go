package rsock_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// addr is the address that the examples listen on. TestExamples sets it.
var addr = "10.9.0.1:7471"

// An echo server and its client, as with package net.
func Example() {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // such as net.ErrClosed
			}
			go func() {
				defer c.Close() // delivers what was written
				io.Copy(c, c)
			}()
		}
	}()

	c, err := rsock.Dial("rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("hello")); err != nil {
		log.Fatal(err)
	}
	c.(*rsock.Conn).CloseWrite() // the server reads io.EOF
	answer, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", answer)
}

// An HTTP server and client over RDMA.
func ExampleDialer_DialContext() {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	go http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s", r.URL.Path[1:])
	}))
	defer l.Close()

	dialer := rsock.Dialer{Options: rsock.Options{ReadBuffer: 1 << 20}}
	client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	defer client.CloseIdleConnections()
	resp, err := client.Get("http://" + addr + "/world")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", body)
}

// HTTPS over RDMA, which does not encrypt by itself. The server's certificate is for tests.
func ExampleListen() {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, tls.VersionName(r.TLS.Version), "by", l.Addr().Network())
	}))
	server.Listener.Close()
	server.Listener = l
	server.StartTLS()
	defer server.Close()

	client := server.Client() // trusts the certificate, which is for example.com
	client.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(rsock.Dialer).DialContext(ctx, network, addr)
	}
	resp, err := client.Get("https://example.com")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	io.Copy(os.Stdout, resp.Body)
}

// Both sides use RDMA if it is available, else TCP. On loopback there is no RDMA.
func ExampleFallback() {
	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
	l, err := lc.Listen(ctx, "rdma", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			io.Copy(c, c)
			c.Close()
		}
	}()

	dialer := rsock.Dialer{Fallback: rsock.FallbackMissing, Timeout: 10 * time.Second}
	c, err := dialer.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	switch c := c.(type) {
	case *rsock.Conn:
		fmt.Println("RDMA, with buffers of", c.Stats().ReadBuffer, "bytes")
	case *net.TCPConn:
		fmt.Println("TCP")
	}
	fmt.Println(c.RemoteAddr().Network())
	// Output:
	// TCP
	// tcp
}

// Options for many small connections: little memory for each, and no polling.
func ExampleListenConfig_Listen() {
	config := rsock.ListenConfig{
		Options: rsock.Options{
			ReadBuffer: 16 << 10, WriteBuffer: 16 << 10, SendQueue: 32, RecvQueue: 32,
			SpinTime: -1,
		},
		Backlog: 1000,
	}
	l, err := config.Listen(ctx, "rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	var _ net.Listener = l
	fmt.Println(l.Addr().Network(), l.Addr())
}
