//go:build linux

package rsock_test

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/rpc"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/rsock"
)

// addr is that of a device in user space in this process, or of the lab's rxe0.
const addr = "10.9.0.1:7471"

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
	// Output: hello
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
	// Output: hello world
}

// HTTPS over RDMA, which does not encrypt by itself. The server's certificate is for tests.
func ExampleListen() {
	l, err := rsock.Listen("rdma", addr)
	if err != nil {
		log.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, tls.VersionName(r.TLS.Version), "from", l.Addr())
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
	// Output: TLS 1.3 from 10.9.0.1:7471
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
	fmt.Println("the listener has RDMA:", l.(*rsock.Listener).RDMA())
	// Output:
	// TCP
	// the listener has RDMA: false
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
	fmt.Println(l.Addr())
	// Output: 10.9.0.1:7471
}

// serve accepts connections at a free port, and passes each to handle.
func serve(handle func(c *rsock.Conn)) net.Listener {
	l, err := rsock.Listen("rdma", "10.9.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go handle(c.(*rsock.Conn))
		}
	}()
	return l
}

// Package net/rpc, or any other that takes a net.Conn, over RDMA.
func ExampleDial() {
	server := rpc.NewServer()
	server.Register(new(Arith))
	l := serve(func(c *rsock.Conn) { server.ServeConn(c) })
	defer l.Close()

	c, err := rsock.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	client := rpc.NewClient(c)
	defer client.Close()
	var product int
	if err := client.Call("Arith.Multiply", [2]int{6, 7}, &product); err != nil {
		log.Fatal(err)
	}
	fmt.Println(product)
	// Output: 42
}

// Arith is a service of net/rpc.
type Arith int

// Multiply returns the product of two numbers.
func (*Arith) Multiply(args [2]int, product *int) error {
	*product = args[0] * args[1]
	return nil
}

// A name or address that no RDMA device leads to has an error of its own, so a program can do
// something else than for a peer that refuses.
func ExampleDialer_Dial() {
	var dialer rsock.Dialer
	_, err := dialer.Dial("rdma", "127.0.0.1:7471")
	fmt.Println("no device:", errors.Is(err, verbs.ErrNoRDMA))
	_, err = dialer.Dial("rdma", "10.9.0.1:9")
	fmt.Println("nobody listens:", errors.Is(err, syscall.ECONNREFUSED))
	// Output:
	// no device: true
	// nobody listens: true
}

// A deadline ends a call that waits, and the connection goes on.
func ExampleConn_SetReadDeadline() {
	l := serve(func(c *rsock.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	defer l.Close()
	c, err := rsock.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	_, err = c.Read(make([]byte, 1))
	fmt.Println(errors.Is(err, os.ErrDeadlineExceeded))

	c.SetReadDeadline(time.Time{})
	fmt.Fprint(c, "still there")
	b := make([]byte, 64)
	n, err := io.ReadAtLeast(c, b, len("still there"))
	fmt.Printf("%s, %v\n", b[:n], err)
	// Output:
	// true
	// still there, <nil>
}

// One side says that it has written all, and still reads.
func ExampleConn_CloseWrite() {
	l := serve(func(c *rsock.Conn) {
		defer c.Close()
		request, _ := io.ReadAll(c)
		fmt.Fprintf(c, "%d bytes", len(request))
	})
	defer l.Close()
	c, err := rsock.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	c.Write(make([]byte, 1<<20))
	c.(*rsock.Conn).CloseWrite()
	io.Copy(os.Stdout, c)
	// Output: 1048576 bytes
}

// ReadFrom is what io.Copy calls: it copies from a reader to the ring that the device sends from.
func ExampleConn_ReadFrom() {
	l := serve(func(c *rsock.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	defer l.Close()
	c, err := rsock.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	n, err := io.Copy(c, strings.NewReader("from a reader"))
	if err != nil {
		log.Fatal(err)
	}
	c.(*rsock.Conn).CloseWrite()
	back, err := io.ReadAll(c)
	fmt.Printf("%d bytes there, %q back, %v\n", n, back, err)
	// Output: 13 bytes there, "from a reader" back, <nil>
}

// What a connection has sent, and the sizes of its rings.
func ExampleConn_Stats() {
	l := serve(func(c *rsock.Conn) { io.Copy(io.Discard, c); c.Close() })
	defer l.Close()
	dialer := rsock.Dialer{Options: rsock.Options{ReadBuffer: 16 << 10, WriteBuffer: 64 << 10}}
	c, err := dialer.Dial("rdma", l.Addr().String())
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		c.Write(make([]byte, 1000))
	}
	c.Close()
	s := c.(*rsock.Conn).Stats()
	fmt.Println(s.BytesSent, "bytes in", s.MessagesSent, "messages, rings of", s.ReadBuffer, "and", s.WriteBuffer)
	fmt.Println(dialer.Stats().Dials, "dial,", dialer.Stats().Open, "open")
	// Output:
	// 3000 bytes in 3 messages, rings of 16384 and 65536
	// 1 dial, 0 open
}

// Flags of a program choose the fallback.
func ExampleFallback_UnmarshalText() {
	var fallback rsock.Fallback
	flags := flag.NewFlagSet("server", flag.ContinueOnError)
	flags.TextVar(&fallback, "fallback", rsock.FallbackNone, "TCP if there is no RDMA: none, missing or always")
	if err := flags.Parse([]string{"-fallback", "missing"}); err != nil {
		log.Fatal(err)
	}
	fmt.Println(fallback, fallback == rsock.FallbackMissing)
	// Output: missing true
}
