//go:build linux

package hipobj

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
)

// TestServerAnswers has a server whose answers are wrong, each in one header or the status. The
// client says which, and has cancelled the session.
func TestServerAnswers(t *testing.T) {
	dev := labtest.Open(t)
	for _, c := range []struct {
		step, name, value string
		status            int
		text              string
		useHTTP           bool
	}{
		{"prepare", "protocol", "", 200, "no header of", true},
		{"prepare", "protocol", "", 404, "404", true},
		{"prepare", "protocol", "", 405, "405", true},
		{"prepare", "protocol-status", noStatus, 501, "501", true},
		{"prepare", "", "", 404, "404", false},
		{"prepare", "", "", 413, "413", true},
		{"prepare", "", "", 403, "403", false},
		{"prepare", "", "", 503, "503", false},
		{"prepare", "", "", 307, "307", false},
		{"prepare", "reply", "501", 200, `"501"`, false},
		{"prepare", "reply", "200:00", 200, "QP token", false},
		{"prepare", "psn", "", 200, "x-amz-rdma-psn", false},
		{"prepare", "psn", "0", 200, "PSN 0", false},
		{"prepare", "session", "", 200, "session", false},
		{"prepare", "mr-rkey", "", 200, "x-amz-rdma-mr-rkey", false},
		{"prepare", "mr-addr", "x", 200, "x-amz-rdma-mr-addr", false},
		{"ready", "protocol", "", 200, "no header of", true},
		{"ready", "", "", 409, "409", false},
		{"ready", "bytes-transferred", "99", 200, "99 bytes", false},
		{"ready", "bytes-transferred", "", 200, "x-amz-rdma-bytes-transferred", false},
		{"ready", "cookie", "1", 200, "cookie 00000001", false},
		{"ready", "checksum", crcName + "AAAAAAAAAAA=", 200, "put it again", false},
	} {
		s := newSite(t, dev, Options{})
		client := s.newClient(t, dev, "u")
		var cancelled, redirected bool
		ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			step := strings.TrimPrefix(r.URL.Path, Path)
			cancelled = cancelled || step == "cancel" && r.Close // its deadline is no other request's
			redirected = redirected || r.URL.Path == "/elsewhere"
			rec := httptest.NewRecorder()
			s.handler.ServeHTTP(rec, r)
			for name, v := range rec.Header() {
				w.Header()[name] = v
			}
			if step != c.step {
				w.WriteHeader(rec.Code)
				return
			}
			if c.name != "" {
				set(w.Header(), c.name, c.value)
			}
			if c.status == http.StatusTemporaryRedirect {
				w.Header().Set("Location", "/elsewhere")
			}
			w.WriteHeader(c.status)
			fmt.Fprint(w, "the reason")
		}))
		client.URL = ts.URL + "/" // with a slash at its end
		_, err := client.Put(t.Context(), "/b/k", client.memory(t, make([]byte, 100)))
		if err == nil || !strings.Contains(err.Error(), c.text) || errors.Is(err, errors.ErrUnsupported) != c.useHTTP || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s with %s %q and status %d: %v", c.step, c.name, c.value, c.status, err)
		}
		if want := c.status == 200 && (c.step == "ready" && c.name == "protocol" || c.step == "prepare" && c.name != "protocol") || c.status == 409; cancelled != want || redirected {
			t.Errorf("%s with %s %q: cancelled: %v, redirected: %v", c.step, c.name, c.value, cancelled, redirected)
		}
		ts.Close()
		for _, x := range s.sessions { // of which the client has not learnt the name
			x.Cancel()
		}
	}
}

// TestBadMemory asks for what no request is sent for.
func TestBadMemory(t *testing.T) {
	dev := labtest.Open(t)
	c := &Client{URL: "http://192.0.2.1", PD: labtest.Made(dev.AllocPD())(t)}
	m := c.memory(t, make([]byte, 100))
	for text, m := range map[string]Memory{
		"from 101 on":         {MR: m.MR, Offset: 101},
		"from -1 on":          {MR: m.MR, Offset: -1},
		"memory of 51 bytes":  {MR: m.MR, Offset: 50, Size: 51},
		"memory of -1 bytes":  {MR: m.MR, Size: -1},
		"0 bytes, want 1 to ": {MR: m.MR, Offset: 100},
	} {
		_, err := c.Put(t.Context(), "/b/k", m)
		if err == nil || !strings.Contains(err.Error(), text) || errors.Is(err, errors.ErrUnsupported) != (m.Offset == 100) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	if _, err := c.Get(t.Context(), "/b/k", -1, m); statusOfAnswer(err) != http.StatusBadRequest {
		t.Errorf("offset -1: %v", err)
	}
	c.Sign = func(*http.Request) error { return fs.ErrPermission }
	if _, err := c.Get(t.Context(), "/b/k", 0, m); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Sign fails: %v", err)
	}
}

// TestMemoryAfterGet ends a GET when its context does, with a server that learns nothing of it and
// writes to the memory afterwards.
func TestMemoryAfterGet(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{Connect: fast})
		c := s.newClient(t, dev, "u")
		s.store.objects.Store("/b/k", []byte("from the server"))
		m := c.memory(t, make([]byte, len("from the server")))
		ctx, cancel := context.WithCancel(t.Context())
		c.HTTP = &http.Client{Transport: transport(func(step string, next func() (*http.Response, error)) (*http.Response, error) {
			if step == "prepare" {
				return next()
			}
			cancel()
			return nil, context.Canceled
		})}
		if _, err := c.Get(ctx, "/b/k", 0, m); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		for _, x := range s.sessions {
			err := x.Move(labtest.Within(t, waitTime), Ready{QPNum: x.Peer.QPNum, Addr: m.MR.Addr(), RKey: m.MR.RKey()})
			if !errors.Is(err, ErrNotReady) || m.MR.Bytes()[0] != 0 {
				t.Errorf("the server's WRITE to the caller's memory: %v, %q", err, m.MR.Bytes())
			}
			labtest.Check(t, x.Cancel())
		}
	})
}

// TestReadyFails has a client whose READY is never sent, while a PUT waits to write after it.
func TestReadyFails(t *testing.T) {
	dev := labtest.Open(t)
	s := newSite(t, dev, Options{Connect: fast})
	c := s.newClient(t, dev, "u")
	c.WriteDelay = time.Millisecond
	c.HTTP = &http.Client{Transport: transport(func(step string, next func() (*http.Response, error)) (*http.Response, error) {
		if step == "ready" {
			return nil, syscall.ECONNREFUSED
		}
		return next()
	})}
	ctx := labtest.Within(t, waitTime)
	if _, err := c.Put(ctx, "/b/k", c.memory(t, make([]byte, 100))); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Error(err)
	}
	if n := s.Stats().Sessions; n != 0 {
		t.Errorf("%d sessions", n)
	}
}

// TestForeignKey has a server that names another key: the client's PUT fails, and nothing is
// stored.
func TestForeignKey(t *testing.T) {
	each(t, func(t *testing.T, dev *uverbs.Context) {
		s := newSite(t, dev, Options{Connect: fast})
		c := s.newClient(t, dev, "u")
		c.HTTP = &http.Client{Transport: transport(func(_ string, next func() (*http.Response, error)) (*http.Response, error) {
			resp, err := next()
			if err == nil && get(resp.Header, "mr-rkey") != "" {
				set(resp.Header, "mr-rkey", "ffffff")
			}
			return resp, err
		})}
		_, err := c.Put(t.Context(), "/b/k", c.memory(t, make([]byte, 100)))
		if !errors.Is(err, verbs.WCRemAccessErr) && statusOfAnswer(err) != http.StatusBadGateway {
			t.Error(err)
		}
		if n := s.Stats().Sessions; n != 0 || s.store.get("/b/k") != nil {
			t.Errorf("%d sessions, stored %q", n, s.store.get("/b/k"))
		}
	})
}

// TestSignPanics has a client whose Sign panics: its queue pair is closed.
func TestSignPanics(t *testing.T) {
	dev := labtest.Open(t)
	s := newSite(t, dev, Options{})
	for _, step := range []string{"prepare", "ready", "cancel"} {
		t.Run(step, func(t *testing.T) {
			c := s.newClient(t, dev, "u")
			m, sign := c.memory(t, make([]byte, 100)), c.Sign
			c.Sign = func(r *http.Request) error {
				switch at := strings.TrimPrefix(r.URL.Path, Path); {
				case at == step:
					panic(step)
				case at == "ready":
					return errors.New("no key") // so that the client cancels
				}
				return sign(r)
			}
			defer func() {
				if r := recover(); r != step {
					t.Errorf("recovered %v", r)
				}
				labtest.Check(t, m.MR.Close())
				labtest.Check(t, c.PD.Close()) // which queue pairs keep open
				for _, x := range s.sessions { // of which the server has not learnt the end
					x.Cancel()
				}
			}()
			c.Put(t.Context(), "/b/k", m)
		})
	}
}
