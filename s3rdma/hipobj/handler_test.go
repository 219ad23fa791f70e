//go:build linux

package hipobj

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
)

// goodHeaders returns headers of PREPARE, and of READY.
func goodHeaders(op string) http.Header {
	h := http.Header{}
	for name, value := range map[string]string{
		"protocol": Protocol, "op": op, "target": "/b/k%20x?a=b", "size": "10", "offset": "0", "psn": "00000a", "cookie": "1a2b3c4d",
		"token": s3rdma.QPToken{Size: 10}.String(), "session": strings.Repeat("0", 32), "qpn": "11", "mr-addr": "7f0000000000", "mr-rkey": "1700",
	} {
		set(h, name, value)
	}
	h.Set("user", "u")
	return h
}

func (s *site) serve(method, step string, h http.Header) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, Path+step, nil)
	r.Header = h
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

func TestBadRequests(t *testing.T) {
	dev := labtest.Open(t)
	s := newSite(t, dev, Options{})
	s.store.objects.Store("/b/k", make([]byte, 100))
	for _, c := range []struct {
		step, name, value string
		status            int
		text              string
	}{
		{"prepare", "protocol", "", 501, Protocol},
		{"prepare", "protocol", "hipobj-rc-v3", 501, Protocol},
		{"nothing", "", "", 404, "step"},
		{"prepare", "op", "", 400, "want GET or PUT"},
		{"prepare", "op", "DELETE", 400, `"DELETE"`},
		{"prepare", "target", "", 400, "target"},
		{"prepare", "target", "b/k", 400, "target"},
		{"prepare", "target", "/b/%zz", 400, "%zz"},
		{"prepare", "target", "/" + strings.Repeat("k", maxText), 400, "at most 2047"},
		{"prepare", "target", "/b/none", 404, "no such object"},
		{"prepare", "size", "", 400, "x-amz-rdma-size"},
		{"prepare", "size", "0", 400, "use HTTP"},
		{"prepare", "size", "-1", 400, "x-amz-rdma-size"},
		{"prepare", "size", "2147483648", 413, fmt.Sprintf("at most %d", s.maxSize)}, // 8 MiB on 6.1's rxe, 1 GiB on mlx5
		{"prepare", "size", "9223372036854775808", 400, "x-amz-rdma-size"},
		{"prepare", "size", "0x10", 400, "x-amz-rdma-size"},
		{"prepare", "offset", "9223372036854775807", 400, "offset 9223372036854775807"},
		{"prepare", "offset", "3000000000", 416, "shorter"}, // the store's affair
		{"prepare", "offset", "x", 400, "x-amz-rdma-offset"},
		{"prepare", "psn", "000000", 400, "PSN"},
		{"prepare", "psn", "1000000", 400, "x-amz-rdma-psn"},
		{"prepare", "cookie", "00000000", 400, "cookie"},
		{"prepare", "cookie", "", 400, "x-amz-rdma-cookie"},
		{"prepare", "token", "", 400, "token"},
		{"prepare", "token", strings.Repeat("0", 88), 400, "transport 0"},
		{"ready", "cookie", "", 400, "x-amz-rdma-cookie"},
		{"ready", "qpn", "", 400, "x-amz-rdma-qpn"},
		{"ready", "qpn", "1000000", 400, "x-amz-rdma-qpn"},
		{"ready", "mr-rkey", "100000000", 400, "x-amz-rdma-mr-rkey"},
		{"ready", "mr-addr", "x", 400, "x-amz-rdma-mr-addr"},
		{"ready", "", "", 404, "no such session"},
		{"cancel", "", "", 404, "no such session"},
	} {
		h := goodHeaders("GET")
		set(h, "target", "/b/k")
		if c.name != "" {
			set(h, c.name, c.value)
		}
		refused := s.Stats().Refused
		w := s.serve("POST", c.step, h)
		// What the protocol or the store refuses is not counted.
		if got, want := s.Stats().Refused-refused, c.step == "prepare" && c.status != 501 && c.status != 404 && c.status != 416; (got == 1) != want {
			t.Errorf("%s with %s %.50q: %d are counted", c.step, c.name, c.value, got)
		}
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("%s with %s %.50q: %d %q, want %d %q", c.step, c.name, c.value, w.Code, w.Body, c.status, c.text)
		}
		if (get(w.Header(), "protocol-status") == noStatus) != (c.status == 501) {
			t.Errorf("%s with %s %.50q: headers %v", c.step, c.name, c.value, w.Header())
		}
		if n := s.Stats().Sessions; n != 0 {
			t.Fatalf("%s with %s %.50q: %d sessions", c.step, c.name, c.value, n)
		}
	}
	if w := s.serve("GET", "prepare", goodHeaders("GET")); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET of a step: %d", w.Code)
	}
}

// TestStoreErrors has a store whose error a client must not see.
func TestStoreErrors(t *testing.T) {
	var log strings.Builder
	s := newSite(t, labtest.Open(t), Options{})
	s.handler.Store = failingStore{&memStore{}}
	s.handler.Logger = slog.New(slog.NewTextHandler(&log, nil))
	w := s.serve("POST", "prepare", goodHeaders("GET"))
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "/secret") || !strings.Contains(log.String(), "/secret") {
		t.Errorf("%d %q, log %q", w.Code, w.Body, log.String())
	}
}

// TestStorePanics has a store that panics: net/http survives it, and so does the server's memory.
func TestStorePanics(t *testing.T) {
	dev := labtest.Open(t)
	s := newSite(t, dev, Options{})
	s.handler.Store = panickingStore{}
	serve := func(step string, h http.Header) {
		defer func() {
			if recover() == nil {
				t.Errorf("%s: no panic", step)
			}
		}()
		s.serve("POST", step, h)
	}
	serve("prepare", goodHeaders("GET"))
	c := s.newClient(t, dev, "u")
	x, _ := s.prepared(t, c, Put, "/b/k", c.memory(t, make([]byte, 10)))
	labtest.Check(t, x.post(t, verbs.SendWR{Opcode: verbs.OpRDMAWriteImm, Imm: x.Cookie, RemoteAddr: x.addr, RKey: x.rkey}))
	r := labtest.Must(x.request(t.Context(), "ready"))(t)
	serve("ready", r.Header)
	if n := s.Stats().Sessions; n != 0 {
		t.Errorf("%d sessions", n)
	}
}

type panickingStore struct{}

func (panickingStore) Get(context.Context, Request, []byte) (Object, error) { panic("get") }
func (panickingStore) Put(context.Context, Request, []byte) (Object, error) { panic("put") }

type failingStore struct{ *memStore }

func (failingStore) Get(context.Context, Request, []byte) (Object, error) {
	return Object{}, errors.New("open /secret: broken")
}

// FuzzHeaders sends headers to all steps. No session is left that has no ID, and no number is
// beyond its limits.
func FuzzHeaders(f *testing.F) {
	dev := labtest.Open(f)
	server, err := NewServer(dev, Options{Limits: Limits{Sessions: 2, Bytes: 1 << 16, AccountSessions: 2, AccountBytes: 1 << 16}})
	if err != nil {
		f.Fatal(err)
	}
	defer server.Close()
	s := &site{Server: server, store: &memStore{}}
	s.handler = &Handler{Server: server, Store: s.store, User: user, AllowPeer: anyPeer, Logger: slog.New(slog.DiscardHandler)}
	s.store.objects.Store("/b/k", make([]byte, 1<<16))
	token := s3rdma.QPToken{Size: 10}.String()
	f.Add("GET", "/b/k", "10", "0", "00000a", "1a2b3c4d", token, "11", "7f00", "1700")
	f.Add("PUT", "/b/k?x", "65536", "", "ffffff", "1", token+":1:2", "ffffff", "", "")
	f.Add("GET", "/b/k", "4294967306", "-1", "+1", "0x1", "01", " 1", "1_0", "g")
	f.Fuzz(func(t *testing.T, op, target, size, offset, psn, cookie, token, qpn, addr, rkey string) {
		h := http.Header{}
		for name, value := range map[string]string{
			"protocol": Protocol, "op": op, "target": target, "size": size, "offset": offset, "psn": psn, "cookie": cookie,
			"token": token, "qpn": qpn, "mr-addr": addr, "mr-rkey": rkey,
		} {
			set(h, name, value)
		}
		h.Set("user", "u")
		w := s.serve("POST", "prepare", h)
		if n := server.Stats().Sessions; (w.Code == http.StatusOK) != (n == 1) {
			t.Fatalf("PREPARE: %d, and %d sessions", w.Code, n)
		}
		if w.Code != http.StatusOK {
			if w.Code == http.StatusInternalServerError {
				t.Errorf("PREPARE: %d %s", w.Code, w.Body)
			}
			return
		}
		x := labtest.Must(server.Session("u", get(w.Header(), "session")))(t)
		if x.Size < 1 || x.Size > 1<<16 || x.Offset < 0 || x.Cookie == 0 || x.Peer.PSN == 0 || x.Peer.PSN > maxPSN {
			t.Errorf("session %+v", x.Request)
		}
		set(h, "session", x.ID())
		if w := s.serve("POST", "cancel", h); w.Code != http.StatusNoContent {
			t.Errorf("CANCEL: %d", w.Code)
		}
		if w := s.serve("POST", "ready", h); w.Code != http.StatusNotFound && w.Code != http.StatusBadRequest {
			t.Errorf("READY after CANCEL: %d", w.Code)
		}
	})
}

// TestAnswersHaveALength: a client of hipObject refuses Transfer-Encoding.
func TestAnswersHaveALength(t *testing.T) {
	dev := labtest.Open(t)
	s := newSite(t, dev, Options{})
	for op, status := range map[string]int{"PUT": http.StatusOK, "GET": http.StatusNotFound, "DELETE": http.StatusBadRequest} {
		r := labtest.Must(http.NewRequest("POST", s.url+Path+"prepare", nil))(t)
		r.Header = goodHeaders(op)
		resp := labtest.Must(http.DefaultClient.Do(r))(t)
		resp.Body.Close()
		if resp.StatusCode != status || resp.TransferEncoding != nil || resp.ContentLength < 0 {
			t.Errorf("%s: %d, length %d, %v", op, resp.StatusCode, resp.ContentLength, resp.TransferEncoding)
		}
	}
	for _, x := range s.sessions {
		labtest.Check(t, x.Cancel())
	}
}
