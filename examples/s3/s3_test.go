//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/uverbs"
	"github.com/goverbs/verbs/verbstest"
)

const name = "bucket/a key/with%20 parts"

var small = staging{regions: 3, size: 64 << 10}

// start starts a server on a device's address. When the test ends, all its regions must be free.
func start(t *testing.T, transport *cm.Transport, addr string) (*server, *httptest.Server) {
	t.Helper()
	s := newServer(4 << 20)
	s.rdma = labtest.Must(listenRDMA(t.Context(), transport, addr+":0", small))(t)
	web := httptest.NewServer(s)
	t.Cleanup(func() {
		web.Close()
		s.rdma.close()
		if n := len(s.rdma.free); n != small.regions {
			t.Errorf("%d staging regions are free, not %d", n, small.regions)
		}
		if left := len(s.rdma.sessions); left > 0 {
			t.Errorf("%d sessions are left", left)
		}
	})
	return s, web
}

func dial(t *testing.T, transport *cm.Transport, url string, mem []byte) *client {
	t.Helper()
	c := labtest.Must(newClient(t.Context(), transport, url, mem))(t)
	t.Cleanup(func() { labtest.Check(t, c.close()) })
	return c
}

// hosts returns a client's and a server's machine, and the server.
func hosts(t *testing.T) (*verbstest.Network, *cm.Transport, *server, *httptest.Server) {
	t.Helper()
	labtest.Require(t)
	network := verbstest.NewNetwork(verbstest.Options{})
	verbstest.TraceOnFailure(t, network)
	here := verbstest.NewHost(t, network, "10.0.0.1")
	s, web := start(t, verbstest.NewHost(t, network, "10.0.0.2"), "10.0.0.2")
	return network, here, s, web
}

// TestObjects moves objects of up to many parts, by more transfers at a time than there are
// regions.
func TestObjects(t *testing.T) {
	labtest.RequireBoth(t)
	labtest.EachClean(t, func(t *testing.T, device string) {
		s, web := start(t, nil, labtest.AddrOf(device))
		end := verbs.WCRecvRDMAImm
		if labtest.Must(uverbs.Find(device))(t).IWARP() {
			end = verbs.WCRecv // a SEND: it has no WRITE with immediate data
		}
		var all sync.WaitGroup
		for i, size := range []int{1, small.size, small.size + 1, 17*small.size - 1} {
			c := dial(t, nil, web.URL, make([]byte, size))
			want := labtest.RandomBytes(i, size)
			all.Go(func() {
				for range 3 {
					key := fmt.Sprint(name, i)
					copy(c.mem, want)
					err := c.put(t.Context(), key, size)
					if err != nil || c.by != "rdma" {
						t.Errorf("put of %d bytes by %s: %v", size, c.by, err)
						return
					}
					clear(c.mem)
					n, err := c.get(t.Context(), key)
					if err != nil || n != size || !bytes.Equal(c.mem, want) || c.by != "rdma" || c.end != end {
						t.Errorf("get of %d bytes by %s: %d bytes, %v at the end, error %v", size, c.by, n, c.end, err)
					}
				}
			})
		}
		all.Wait()
		if n := len(s.rdma.free); n != small.regions {
			t.Errorf("%d staging regions are free, not %d", n, small.regions)
		}
	})
}

// TestHTTP uses the server as curl does, and exchanges objects with a client that uses RDMA.
func TestHTTP(t *testing.T) {
	_, here, s, web := hosts(t)
	do := func(method, key, body string, header ...string) (int, string, http.Header) {
		t.Helper()
		req := labtest.Must(http.NewRequest(method, web.URL+"/"+key, strings.NewReader(body)))(t)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp := labtest.Must(http.DefaultClient.Do(req))(t)
		defer resp.Body.Close()
		return resp.StatusCode, string(labtest.Must(io.ReadAll(resp.Body))(t)), resp.Header
	}
	if status, text, _ := do("PUT", "bucket/key", "by HTTP"); status != 200 {
		t.Errorf("PUT: %d %s", status, text)
	}
	c := dial(t, here, web.URL, make([]byte, 100))
	if n, err := c.get(t.Context(), "bucket/key"); err != nil || string(c.mem[:n]) != "by HTTP" || c.by != "rdma" {
		t.Errorf("get by %s: %q, %v", c.by, c.mem[:n], err)
	}
	labtest.Check(t, c.put(t.Context(), "bucket/key", copy(c.mem, "by RDMA")))
	labtest.Check(t, c.put(t.Context(), "bucket/empty", 0))
	if n, err := c.get(t.Context(), "bucket/empty"); n != 0 || err != nil {
		t.Errorf("get of an empty object: %d bytes, %v", n, err)
	}
	for _, test := range []struct {
		method, key, body string
		header            []string
		status            int
		want              string
	}{
		{"GET", "bucket/key", "", nil, 200, "by RDMA"},
		{"GET", "bucket/key", "", []string{"Range", "bytes=3-"}, 206, "RDMA"},
		{"HEAD", "bucket/key", "", nil, 200, ""},
		{"GET", "bucket/nothing", "", nil, 404, "NoSuchKey"},
		{"HEAD", "bucket/nothing", "", nil, 404, ""},
		{"GET", "b/key", "", nil, 400, "InvalidURI"},
		{"POST", "bucket/key", "", nil, 405, "MethodNotAllowed"},
		{"PUT", "bucket/key", "text", []string{checksumHeader, "AAAAAA=="}, 400, "BadDigest"},
		{"PUT", "bucket/key", strings.Repeat("x", 5<<20), nil, 507, "InsufficientStorage"},
		{"GET", "bucket/key", "", []string{tokenHeader, "x"}, 400, "InvalidArgument"},
		{"DELETE", "bucket/key", "", nil, 204, ""},
		{"GET", "bucket/key", "", nil, 404, "NoSuchKey"},
	} {
		if status, text, _ := do(test.method, test.key, test.body, test.header...); status != test.status || !strings.Contains(text, test.want) {
			t.Errorf("%s %s %v: %d %s, want %d and %s", test.method, test.key, test.header, status, text, test.status, test.want)
		}
	}
	if s.room != 4<<20 {
		t.Errorf("room for %d bytes without objects", s.room)
	}
}

func TestToken(t *testing.T) {
	good := token{strings.Repeat("0a", sessionLen), 1, 0x1000, 4096}
	for _, text := range []string{good.String(), good.String() + ";"} {
		if got, err := parseToken(text); err != nil || got != good {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	empty, wraps := good, good
	empty.size, wraps.addr = 0, ^uint64(0)-4094
	for _, bad := range []string{"", "::", good.String()[1:], good.String() + ":", strings.Replace(good.String(), ":", ":+", 1)[:74],
		strings.Replace(good.String(), "1000", "x000", 1), empty.String(), wraps.String()} {
		if got, err := parseToken(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, %v", bad, got, err)
		}
	}
}

// TestWrongToken offers memory that is not the client's own: its connection ends, no other does.
func TestWrongToken(t *testing.T) {
	_, here, s, web := hosts(t)
	good := dial(t, here, web.URL, make([]byte, 1<<20))
	for _, test := range []struct {
		change   func(*token)
		get, put string
	}{
		{func(k *token) { k.rkey++ }, "500 .*: remote access error", "500 .*: remote access error"},
		{func(k *token) { k.addr += 100 }, "500 .*: remote access error", "500 .*: remote access error"},
		{func(k *token) { k.session = strings.Repeat("0", 2*sessionLen) }, "<nil>", "no such RDMA session"}, // by HTTP
		{func(k *token) { k.size = 100 }, "400 .*: EntityTooLarge: .* has 1048576 bytes, the memory offered 100", "<nil>"},
		{func(k *token) { k.size = maxObject + 1 }, "<nil>", "400 .*: EntityTooLarge"},
		{func(k *token) { k.size = 5 << 20 }, "<nil>", "507 .*: InsufficientStorage"},
	} {
		for method, want := range map[string]string{"GET": test.get, "PUT": test.put} {
			if err := good.put(t.Context(), name, 1<<20); err != nil || good.by != "rdma" {
				t.Errorf("another client puts by %s: %v", good.by, err)
			}
			c := dial(t, here, web.URL, make([]byte, 1<<20))
			labtest.Check(t, c.connect(t.Context()))
			k := labtest.Must(parseToken(c.offer(1 << 20)))(t)
			test.change(&k)
			resp, err := c.request(t.Context(), method, name, k.String(), "", nil)
			if err == nil {
				resp.Body.Close()
			}
			if !regexp.MustCompile(want).MatchString(fmt.Sprint(err)) {
				t.Errorf("%s with %v: %v, want %s", method, k, err, want)
			}
		}
	}
	if s.replace(name, nil); s.room != 4<<20 {
		t.Errorf("room for %d bytes without objects", s.room)
	}
}

// TestDamage changes a stored object, and lets the client find out.
func TestDamage(t *testing.T) {
	_, here, s, web := hosts(t)
	c := dial(t, here, web.URL, make([]byte, 1000))
	labtest.Check(t, c.put(t.Context(), name, 1000))
	s.objects[name].data[500]++
	if _, err := c.get(t.Context(), name); err == nil || !strings.Contains(err.Error(), "CRC-32C") {
		t.Errorf("get of a damaged object: %v", err)
	}
}

// TestFallback loses RDMA at the server, and has none from the start.
func TestFallback(t *testing.T) {
	_, here, s, web := hosts(t)
	c := dial(t, here, web.URL, make([]byte, 1000))
	for _, by := range []string{"rdma", "http"} {
		labtest.Check(t, c.put(t.Context(), name, 1000))
		if n, err := c.get(t.Context(), name); n != 1000 || err != nil || c.by != by {
			t.Errorf("get by %s, not %s: %d bytes, %v", c.by, by, n, err)
		}
		s.rdma.close()
	}
	web.Config.Handler = newServer(1 << 20)
	c = dial(t, here, web.URL, make([]byte, 1000))
	if err := c.put(t.Context(), name, 1000); err != nil || c.by != "http" {
		t.Errorf("put by %s: %v", c.by, err)
	}
}

// TestCancel cancels transfers while packets are on the way, and uses the memory for something
// else. If the server does not notice that, it repeats them, but the memory does not change any
// more.
func TestCancel(t *testing.T) {
	for _, test := range []struct {
		method  string
		kind    verbstest.Kind
		notices bool
	}{
		{"GET", verbstest.Write, true}, {"GET", verbstest.Write, false},
		{"PUT", verbstest.ReadRequest, true}, {"PUT", verbstest.ReadRequest, false},
	} {
		t.Run(fmt.Sprintf("%s/%v", test.method, test.notices), func(t *testing.T) {
			network, here, s, web := hosts(t)
			answered := make(chan bool, 2)
			serving, stop := context.WithCancel(t.Context())
			defer stop()
			web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !test.notices {
					r = r.WithContext(serving)
				}
				s.ServeHTTP(w, r)
				answered <- true
			})
			c := dial(t, here, web.URL, make([]byte, 1<<20))
			<-answered // that of newClient
			s.reserve(1 << 20)
			s.replace(name, &object{data: make([]byte, 1<<20)})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var packets atomic.Int32
			network.SetFilter(func(p *verbstest.Packet) verbstest.Action {
				if p.Kind == test.kind && packets.Add(1) == 2 {
					network.Partition(netip.MustParseAddr("10.0.0.2"))
					cancel()
				}
				return verbstest.Pass
			})
			var err error
			if test.method == "GET" {
				_, err = c.get(ctx, name)
			} else {
				err = c.put(ctx, name, 1<<20)
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled %s: %v", test.method, err)
			}
			other := bytes.Repeat([]byte{'x'}, 1<<20)
			copy(c.mem, other)
			sent := packets.Load()
			network.Heal()
			if !test.notices {
				labtest.Until(t, "packets to be repeated", func() bool { return packets.Load() >= sent+2 })
				stop()
			}
			<-answered
			if !bytes.Equal(c.mem, other) {
				t.Error("the memory has changed")
			}
			if !bytes.Equal(s.objects[name].data, make([]byte, 1<<20)) || s.room != 3<<20 {
				t.Errorf("the object has changed, or room for %d bytes", s.room)
			}
			web.Config.Handler = s
			if err := c.put(t.Context(), name, 1<<20); err != nil || c.by != "rdma" {
				t.Errorf("put by %s after that: %v", c.by, err)
			}
		})
	}
}
