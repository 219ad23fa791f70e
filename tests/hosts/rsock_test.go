package hosts

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// rsockLayer is rsock: bytes that come back while others still go.
var rsockLayer = layer{name: "rsock", serve: serveRsock, dial: dialRsock, died: []error{syscall.ECONNRESET, syscall.ETIMEDOUT}}

// httpLayer is net/http over rsock, which asks again on a new connection if one
// that was idle has ended.
var httpLayer = layer{name: "rsock, net/http", serve: serveHTTP, dial: dialHTTP, died: []error{syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.ECONNREFUSED}}

func listenRsock(ctx context.Context, addr string) (net.Listener, error) {
	l, err := rsock.Listen("rdma", addr)
	if err == nil {
		context.AfterFunc(ctx, func() { l.Close() })
	}
	return l, err
}

func serveRsock(ctx context.Context, addr string) (string, error) {
	l, err := listenRsock(ctx, addr)
	if err != nil {
		return "", err
	}
	go listen(l.Accept, func(c net.Conn) {
		defer c.Close()
		io.Copy(c, c)
	})
	return l.Addr().String(), nil
}

type rsockSession struct{ net.Conn }

func dialRsock(ctx context.Context, addr string) (session, error) {
	c, err := (&rsock.Dialer{}).DialContext(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	return rsockSession{c}, nil
}

func (s rsockSession) poke() { s.Conn.(*rsock.Conn).SetKeepAlivePeriod(time.Second) }

func (s rsockSession) round(ctx context.Context, number, n int) error {
	if end, ok := ctx.Deadline(); ok {
		s.SetDeadline(end)
	}
	sent := make(chan error, 1)
	data := fill(make([]byte, n), number)
	go func() {
		_, err := s.Write(data)
		sent <- err
	}()
	got := make([]byte, n)
	if _, err := io.ReadFull(s, got); err != nil {
		s.SetDeadline(time.Unix(1, 0))
		<-sent
		return fmt.Errorf("read: %w", err)
	}
	if err := <-sent; err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return wrong("what came back", got, data)
}

func serveHTTP(ctx context.Context, addr string) (string, error) {
	l, err := listenRsock(ctx, addr)
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{number}/{n}", func(w http.ResponseWriter, r *http.Request) {
		number, _ := strconv.Atoi(r.PathValue("number"))
		n, _ := strconv.ParseInt(r.PathValue("n"), 10, 64)
		io.CopyN(w, noise(number), n)
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	s := &http.Server{Handler: mux}
	context.AfterFunc(ctx, func() { s.Close() })
	go s.Serve(l)
	return l.Addr().String(), nil
}

type httpSession struct {
	http.Client
	url string
}

func dialHTTP(_ context.Context, addr string) (session, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := (&rsock.Dialer{}).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*rsock.Conn).SetKeepAlivePeriod(time.Second)
		}
		return c, err
	}
	return &httpSession{http.Client{Transport: &http.Transport{DialContext: dial}}, "http://" + addr}, nil
}

func (s *httpSession) round(ctx context.Context, number, n int) error {
	data := fill(make([]byte, n), number)
	for _, r := range []struct {
		method, path string
		body         io.Reader
	}{{"GET", fmt.Sprintf("/%d/%d", number, n), nil}, {"POST", "/", bytes.NewReader(data)}} {
		req, err := http.NewRequestWithContext(ctx, r.method, s.url+r.path, r.body)
		if err != nil {
			return err
		}
		resp, err := s.Do(req)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			return err
		}
		if err := wrong("answer to "+r.method, got, data); err != nil {
			return err
		}
	}
	return nil
}

func (s *httpSession) poke() {} // its connections do, all the time

func (s *httpSession) Close() error {
	s.CloseIdleConnections()
	return nil
}
