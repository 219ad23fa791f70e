package workload

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/goverbs/verbs/rsock"
)

// HTTP uses net/http over rsock. net/http repeats a request on a new connection if an idle
// one has ended.
var HTTP = &Layer{Name: "net/http", Listen: listenHTTP, Dial: dialHTTP, PeerGoneErrors: []error{syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ECONNREFUSED}}

// listenHTTP answers GET with the data of a key and a number, and POST with the body, while
// it is received.
func listenHTTP(ctx context.Context, addr string, report func(error)) (*Server, error) {
	l, err := (&rsock.ListenConfig{HandshakeTimeout: handshakeTimeout}).Listen(ctx, "rdma", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{key}/{seq}/{n}", func(w http.ResponseWriter, r *http.Request) {
		key, _ := strconv.ParseUint(r.PathValue("key"), 16, 64)
		seq, _ := strconv.ParseUint(r.PathValue("seq"), 10, 64)
		n, _ := strconv.Atoi(r.PathValue("n"))
		w.Header().Set("Content-Length", strconv.Itoa(n))
		w.Write(Key(key).Fill(make([]byte, n), seq)) // the client notices a failure
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		http.NewResponseController(w).EnableFullDuplex()
		io.Copy(w, r.Body)
	})
	return serveHTTP(ctx, l, mux, report, nil), nil
}

// serveHTTP serves until ctx ends or the server is closed, and calls end then, if that is not nil.
func serveHTTP(ctx context.Context, l net.Listener, handler http.Handler, report func(error), end func() error) *Server {
	server := &http.Server{Handler: handler}
	s := &Server{Addr: l.Addr().String(), stop: server.Close, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	go func() {
		defer close(s.done)
		defer stop()
		if err := server.Serve(l); err != http.ErrServerClosed {
			s.err = err
			report(err)
		}
		if end != nil {
			s.err = errors.Join(s.err, end())
		}
	}()
	return s
}

type httpSession struct {
	simple
	http.Client
	url  string
	mine Key
	seq  uint64
}

func dialHTTP(_ context.Context, addr string) (Session, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(rsock.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = c.(*rsock.Conn).SetKeepAlivePeriod(time.Second)
		}
		return c, err
	}
	return &httpSession{Client: http.Client{Transport: &http.Transport{DialContext: dial}}, url: "http://" + addr, mine: Key(rand.Uint64())}, nil
}

// Round gets n bytes, and posts n bytes that are returned.
func (s *httpSession) Round(ctx context.Context, n int) error {
	s.seq++
	for _, r := range []struct {
		method, path string
		body         io.Reader
		want         Key
	}{
		{"GET", fmt.Sprintf("/%x/%d/%d", uint64(s.mine.Peer()), s.seq, n), nil, s.mine.Peer()},
		{"POST", "/", bytes.NewReader(s.mine.Fill(make([]byte, n), s.seq)), s.mine},
	} {
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
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", r.method, resp.Status)
		}
		if err := r.want.Check("answer to "+r.method, got, s.seq, n); err != nil {
			return err
		}
	}
	return nil
}

func (s *httpSession) Close() error {
	s.CloseIdleConnections()
	return nil
}
