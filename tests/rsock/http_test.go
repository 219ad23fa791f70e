package rsock

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// noise returns a reader of the first n bytes of the pseudorandom stream with a seed.
func noise(seed, n int) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)}), int64(n))
}

func sum(t testing.TB, r io.Reader) string {
	t.Helper()
	h := sha256.New()
	if _, err := io.Copy(h, r); err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%x", h.Sum(nil))
}

// handler answers GET with noise and POST with the sum of the body.
func handler(t *testing.T) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{seed}/{n}", func(w http.ResponseWriter, r *http.Request) {
		seed, _ := strconv.Atoi(r.PathValue("seed"))
		n, _ := strconv.Atoi(r.PathValue("n"))
		io.Copy(w, noise(seed, n))
	})
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, sum(t, r.Body))
	})
	return mux
}

// serve starts a server on a device, and returns a client of it that dials whenever it needs
// another connection.
func serve(t *testing.T, device string, h2 bool, h http.Handler) (client *http.Client, url string, dials *atomic.Int32) {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	// Two hundred concurrent handshakes take seconds on an emulated machine.
	lc := rsock.ListenConfig{HandshakeTimeout: time.Minute}
	s.Listener = labtest.Must(lc.Listen(t.Context(), "rdma", labtest.AddrOf(device)+":0"))(t)
	s.EnableHTTP2 = h2
	if h2 {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	client = s.Client()
	dials = new(atomic.Int32)
	tr := client.Transport.(*http.Transport)
	tr.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		dials.Add(1)
		return new(rsock.Dialer).DialContext(ctx, network, addr)
	}
	if h2 {
		tr.TLSClientConfig.ServerName = "example.com" // the name in the certificate
	}
	client.Timeout = 100 * time.Second
	return client, s.URL, dials
}

func get(t *testing.T, client *http.Client, url string, seed, n int) {
	t.Helper()
	resp, err := client.Get(fmt.Sprintf("%s/%d/%d", url, seed, n))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	if got, want := sum(t, resp.Body), sum(t, noise(seed, n)); got != want {
		t.Errorf("GET %d: what came sums to %s, not %s", seed, got, want)
	}
}

func post(t *testing.T, client *http.Client, url string, seed, n int) {
	t.Helper()
	resp, err := client.Post(url, "application/octet-stream", noise(seed, n))
	if err != nil {
		t.Error(err)
		return
	}
	defer resp.Body.Close()
	var got bytes.Buffer
	io.Copy(&got, resp.Body)
	if want := sum(t, noise(seed, n)); got.String() != want {
		t.Errorf("POST %d: what was posted sums to %s, not %s", seed, &got, want)
	}
}

// The sizes add up to some 38 MiB on each device and protocol.
const (
	atOnce  = 100
	small   = 100 << 10
	bodies  = 2
	large   = 4 << 20
	inTurns = 30
)

func TestHTTP(t *testing.T) {
	labtest.Each(t, func(t *testing.T, device string) {
		for name, h2 := range map[string]bool{"HTTP 1": false, "HTTP 2": true} {
			t.Run(name, func(t *testing.T) {
				client, url, dials := serve(t, device, h2, handler(t))
				t.Run("one connection", func(t *testing.T) {
					for i := range inTurns {
						get(t, client, url, i, i*1000)
						post(t, client, url, i, i*1000)
					}
					if n := dials.Load(); n != 1 {
						t.Errorf("%d connections", n)
					}
				})
				t.Run("big bodies", func(t *testing.T) {
					for i := range bodies {
						get(t, client, url, i, large)
						post(t, client, url, i, large)
					}
				})
				t.Run("at once", func(t *testing.T) {
					n := atOnce
					if !labtest.Soft && labtest.IWARP(t, device) {
						// Its drivers give up a handshake after 10 s (MPAREP_TIMEOUT), which those of many
						// connections take on an emulated adapter beside other load.
						n /= 4
					}
					var wg sync.WaitGroup
					for i := range n {
						wg.Go(func() { get(t, client, url, i, small) })
						wg.Go(func() { post(t, client, url, i, small) })
					}
					wg.Wait()
				})
				t.Run("reset", func(t *testing.T) { // by a client that stops reading
					resp := labtest.Must(client.Get(fmt.Sprintf("%s/1/%d", url, int64(1<<40))))(t)
					io.CopyN(io.Discard, resp.Body, 1<<20)
					resp.Body.Close()
					get(t, client, url, 7, 1000)
				})
			})
		}
	})
}

// aborting ends a handler in the middle of a body, as net/http permits.
type aborting struct{}

func (aborting) Read([]byte) (int, error) { panic(http.ErrAbortHandler) }

// TestHTTPAbort checks that a handler that panics while it copies a body fails only its own
// request, over TCP and over rsock.
func TestHTTPAbort(t *testing.T) {
	abort := http.NewServeMux()
	abort.HandleFunc("/ok", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "ok") })
	abort.HandleFunc("/abort", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1000000") // so that io.Copy uses the connection's ReadFrom
		io.Copy(w, io.MultiReader(noise(1, 10000), aborting{}))
	})
	test := func(t *testing.T, client *http.Client, url string) {
		for range 3 {
			resp, err := client.Get(url + "/abort")
			if err == nil {
				_, err = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			if err == nil {
				t.Error("an aborted request succeeded")
			}
			if resp, err = client.Get(url + "/ok"); err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); string(body) != "ok" || err != nil {
				t.Errorf("%q, %v", body, err)
			}
			resp.Body.Close()
		}
	}
	t.Run("tcp", func(t *testing.T) {
		s := httptest.NewServer(abort)
		defer s.Close()
		test(t, s.Client(), s.URL)
	})
	t.Run("rdma", func(t *testing.T) {
		labtest.Each(t, func(t *testing.T, device string) {
			client, url, _ := serve(t, device, false, abort)
			test(t, client, url)
		})
	})
}
