//go:build linux

package s3rdma

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

// request sends a request by a transport, and returns the answer with its body read and closed.
func request(t *testing.T, rt http.RoundTripper, method, url string, body []byte, header ...string) (status int, got []byte, err error) {
	t.Helper()
	req := labtest.Must(http.NewRequestWithContext(labtest.Within(t, time.Minute), method, url, bytes.NewReader(body)))(t)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	got, err = io.ReadAll(resp.Body)
	if resp.ContentLength >= 0 && int(resp.ContentLength) != len(got) && method != http.MethodHead {
		t.Errorf("%s %s: Content-Length %d of %d bytes", method, url, resp.ContentLength, len(got))
	}
	return resp.StatusCode, got, err
}

// TestTransport puts and gets objects and ranges of them, several at a time.
func TestTransport(t *testing.T) {
	labtest.RequireBoth(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		tr := &Transport{Client: c}
		var all sync.WaitGroup
		sizes := []int{1, 4096, 100_001, 3<<20 + 1}
		for i, size := range sizes {
			all.Go(func() {
				url, want := fmt.Sprintf("%s/bucket/%d", s.web.URL, i), labtest.RandomBytes(i, size)
				for range 2 {
					if status, _, err := request(t, tr, "PUT", url, want); status != 200 || err != nil {
						t.Errorf("PUT of %d bytes: %d, %v", size, status, err)
					}
					if status, got, err := request(t, tr, "GET", url, nil); status != 200 || err != nil || !bytes.Equal(got, want) {
						t.Errorf("GET of %d bytes: %d, %d bytes, %v", size, status, len(got), err)
					}
				}
				from, to := size/3, size-1
				status, got, err := request(t, tr, "GET", url, nil, "Range", fmt.Sprintf("bytes=%d-%d", from, to))
				if status != 206 || err != nil || !bytes.Equal(got, want[from:]) {
					t.Errorf("GET of bytes %d to %d: %d, %d bytes, %v", from, to, status, len(got), err)
				}
			})
		}
		all.Wait()
		st := c.Stats()
		if st.Puts != 8 || st.Gets != 12 || sum(st.Fallbacks) != 0 || st.Lent != 0 || slices.Contains(s.seen(), "") {
			t.Errorf("%+v", st)
		}
		if c.dc == nil && len(s.ends) > len(sizes) {
			t.Errorf("%d connections for %d requests at a time", len(s.ends), len(sizes))
		}
		for range 2 {
			request(t, tr, "HEAD", s.web.URL+"/bucket/1", nil)
			request(t, tr, "PUT", s.web.URL+"/bucket/empty", nil)
			request(t, tr, "GET", s.web.URL+"/bucket/?list-type=2", nil)
			request(t, tr, "PUT", s.web.URL+"/bucket", []byte("<CreateBucketConfiguration/>"))
		}
		if after := c.Stats(); !maps.Equal(after.Fallbacks, st.Fallbacks) || after.Puts != st.Puts || after.Gets != st.Gets {
			t.Errorf("%+v after requests that move no object", after)
		}
	})
}

// TestChecksumHeader checks the values of all algorithms, and which of them a PUT has.
func TestChecksumHeader(t *testing.T) {
	for name, want := range map[string]string{
		"CRC32": "cbf43926", "CRC32C": "e3069283", "CRC64NVME": "ae8b14860a799888", "SHA1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
		"SHA256": "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
	} {
		raw := labtest.Must(hex.DecodeString(want))(t)
		if got := checksum(name, []byte("123456789")); got != base64.StdEncoding.EncodeToString(raw) {
			t.Errorf("%s is %s", name, got)
		}
	}
	labtest.Require(t)
	eachFake(t, ClientOptions{Checksum: "SHA256"}, func(t *testing.T, s *fakeStore, c *Client) {
		const body = "123456789"
		for _, test := range []struct {
			header []string
			want   string // that the server gets
			reason string // for HTTP
		}{
			{nil, "X-Amz-Checksum-Sha256", ""},
			{[]string{"x-amz-sdk-checksum-algorithm", "CRC64NVME"}, "X-Amz-Checksum-Crc64nvme", ""},
			{[]string{"x-amz-checksum-crc32c", checksum("CRC32C", []byte(body))}, "X-Amz-Checksum-Crc32c", ""},
			{[]string{"x-amz-checksum-crc32c", checksum("CRC32C", []byte(body)), "x-amz-checksum-mode", "ENABLED"}, "X-Amz-Checksum-Crc32c", ""},
			{[]string{"x-amz-sdk-checksum-algorithm", "XXHASH3"}, "", byChecksum},
			{[]string{"x-amz-checksum-xxhash3", "AAAAAAAAAAA="}, "", byChecksum},
			{[]string{"x-amz-checksum-xxhash3", "AAAAAAAAAAA=", "x-amz-checksum-crc32c", checksum("CRC32C", []byte(body))}, "X-Amz-Checksum-Crc32c", ""},
			{[]string{"x-amz-trailer", "x-amz-checksum-crc32c"}, "", byEncoding},
			{[]string{"content-encoding", "aws-chunked"}, "", byEncoding},
			{[]string{"x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "", byEncoding},
		} {
			var got http.Header
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				got = r.Header
				return false
			}
			before := c.Stats().Fallbacks[test.reason]
			status, _, err := request(t, &Transport{Client: c}, "PUT", s.web.URL+"/bucket/key", []byte(body), append(test.header, "Content-Md5", "x", "Expect", "100-continue")...)
			if status != 200 || err != nil {
				t.Fatalf("%v: %d, %v", test.header, status, err)
			}
			if test.reason != "" {
				if c.Stats().Fallbacks[test.reason] != before+1 || got.Get(HeaderToken) != "" {
					t.Errorf("%v: %+v, %v", test.header, c.Stats(), got)
				}
				continue
			}
			sums := 0
			for name := range checksums {
				if got.Get(checksumPrefix+name) != "" {
					sums++
				}
			}
			if sums != 1 || got.Get(test.want) == "" || got.Get("Content-Md5") != "" || got.Get("Expect") != "" || got.Get("X-Amz-Content-Sha256") != "UNSIGNED-PAYLOAD" {
				t.Errorf("%v: %v, want %s", test.header, got, test.want)
			}
		}
	})
}

// TestPlainServer stores an object at servers that do not know tokens. To them a PUT with one is an
// empty object: one that checks the checksum refuses it, another one stores it.
func TestPlainServer(t *testing.T) {
	labtest.Require(t)
	for _, checks := range []bool{true, false} {
		t.Run(fmt.Sprintf("checks=%v", checks), func(t *testing.T) {
			eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
				want, key, puts := labtest.RandomBytes(1, 1<<20), "/bucket/key", 0
				s.objects[key] = []byte("old")
				s.hook = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method == http.MethodPut {
						puts++
					}
					if r.Method == http.MethodPut && checks && r.ContentLength == 0 {
						if string(s.objects[key]) != "old" {
							t.Error("the object is not the old one")
						}
						http.Error(w, "BadDigest", http.StatusBadRequest)
						return true
					}
					r.Header.Del(HeaderToken)
					for name := range checksums {
						r.Header.Del(checksumPrefix + name)
					}
					return false
				}
				request(t, &Transport{Client: c}, "PUT", s.web.URL+"/bucket/other", want, "If-None-Match", "*")
				if c.Stats().Fallbacks[byCondition] != 1 || puts != 1 {
					t.Errorf("a conditional PUT as the first: %d PUTs, %+v", puts, c.Stats())
				}
				puts = 0
				if status, _, err := request(t, &Transport{Client: c}, "PUT", s.web.URL+key, want); status != 200 || err != nil {
					t.Errorf("PUT: %d, %v", status, err)
				}
				if !bytes.Equal(s.objects[key], want) {
					t.Errorf("the object has %d bytes", len(s.objects[key]))
				}
				status, got, err := request(t, &Transport{Client: c}, "GET", s.web.URL+key, nil)
				if status != 200 || err != nil || !bytes.Equal(got, want) {
					t.Errorf("GET: %d, %d bytes, %v", status, len(got), err)
				}
				if f := c.Stats().Fallbacks; puts != 2 || f[byIgnored] < 1 || f[byIgnored]+f[byPause] != 2 {
					t.Errorf("%d PUTs, %v", puts, f)
				}
			})
		})
	}
}

// TestNoConnect uses a server that connects no queue pairs: the client asks once.
func TestNoConnect(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		if c.dc != nil {
			t.Skip("DC has no connections")
		}
		asked := 0
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				asked++
				http.Error(w, "MethodNotAllowed", http.StatusMethodNotAllowed)
			} else if n, _ := io.Copy(io.Discard, r.Body); n != 5 {
				t.Errorf("a body of %d bytes", n)
			}
		}))
		defer plain.Close()
		for range 3 {
			if status, _, err := request(t, &Transport{Client: c}, "PUT", plain.URL+"/bucket/key", []byte("hello")); status != 200 || err != nil {
				t.Errorf("PUT: %d, %v", status, err)
			}
		}
		if f := c.Stats().Fallbacks; asked != 1 || f[byConnect] != 1 || f[byPause] != 2 {
			t.Errorf("asked %d times, %v", asked, f)
		}
	})
}

// TestAnswers has what the client makes of answers to a token.
func TestAnswers(t *testing.T) {
	labtest.Require(t)
	body := labtest.RandomBytes(1, 1000)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		for _, test := range []struct {
			method string
			status int
			reply  string
			reason string // why the request uses HTTP; if "", the answer is the caller's
			again  bool   // in another request
		}{
			{"PUT", 200, "501", byDeclined, true},
			{"PUT", 200, "400", byDeclined, true},
			{"PUT", 501, "", byDeclined, true},
			{"PUT", 501, "501", byDeclined, true},
			{"PUT", 400, "", byIgnored, true},
			{"PUT", 500, "", byFailed, true},
			{"PUT", 500, "500", byFailed, true},
			{"PUT", 403, "", "", false},
			{"PUT", 400, "400", "", false},
			{"PUT", 503, "", "", false},
			{"PUT", 408, "", "", false},
			{"GET", 200, "501", byDeclined, false},
			{"GET", 200, "", byIgnored, false},
			{"GET", 501, "501", byDeclined, true},
			{"GET", 400, "", byDeclined, true},
			{"GET", 500, "", byFailed, true},
			{"GET", 404, "404", "", false},
			{"GET", 304, "", "", false},
			{"GET", 504, "", "", false},
		} {
			url := s.web.URL + "/bucket/key"
			s.hook = nil
			if status, _, err := request(t, &Transport{Client: c}, "PUT", url, body); status != 200 || err != nil {
				t.Fatalf("PUT: %d, %v", status, err)
			}
			var seen []string
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				seen = append(seen, r.Header.Get(HeaderToken))
				if len(seen) > 1 {
					return false
				}
				if test.reply != "" {
					w.Header().Set(HeaderReply, test.reply)
				}
				if test.status == 200 && test.method == "GET" {
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(body))
				} else {
					w.WriteHeader(test.status)
				}
				return true
			}
			before := c.Stats()
			status, got, err := request(t, &Transport{Client: c}, test.method, url, body)
			want := test.status
			if test.again {
				want = 200
			}
			if err != nil || status != want || want == 200 && test.method == "GET" && !bytes.Equal(got, body) {
				t.Errorf("%+v: %d, %d bytes, %v", test, status, len(got), err)
			}
			if len(seen) == 0 || seen[0] == "" || len(seen) > 1 != test.again || test.again && seen[1] != "" {
				t.Errorf("%+v: requests with tokens %q", test, seen)
			}
			after := c.Stats()
			if test.reason != "" && after.Fallbacks[test.reason] != before.Fallbacks[test.reason]+1 || after.Puts+after.Gets != before.Puts+before.Gets || after.Lent != 0 {
				t.Errorf("%+v: %+v", test, after)
			}
		}
	})
}

// TestServerLies has servers whose answers do not match what they have moved.
func TestServerLies(t *testing.T) {
	labtest.Require(t)
	const most = 1 << 20
	eachFake(t, ClientOptions{GetSize: most}, func(t *testing.T, s *fakeStore, c *Client) {
		body := labtest.RandomBytes(1, 1000)
		url := s.web.URL + "/bucket/key"
		for _, test := range []struct {
			method string
			header map[string]string
			want   string
		}{
			{"GET", map[string]string{HeaderBytes: "1048578"}, "memory 1048577 bytes"},
			{"GET", map[string]string{HeaderBytes: "-1"}, `"-1"`},
			{"GET", map[string]string{HeaderBytes: "ten"}, `"ten"`},
			{"GET", map[string]string{HeaderBytes: ""}, `""`},
			{"GET", map[string]string{HeaderBytes: "999", "X-Amz-Checksum-Crc32c": checksum("CRC32C", body)}, "999 bytes have X-Amz-Checksum-Crc32c"},
			{"GET", map[string]string{HeaderBytes: "1000", "X-Amz-Checksum-Crc64nvme": "AAAAAAAAAAA="}, "1000 bytes have X-Amz-Checksum-Crc64nvme"},
			{"GET", map[string]string{HeaderBytes: "1000", HeaderReply: "206", "Content-Range": "bytes 0-1000/2000"}, `moved 1000 bytes of "bytes 0-1000/2000"`},
			{"GET", map[string]string{HeaderBytes: "1000", HeaderReply: "206", "Content-Range": "bytes 5-9/*"}, `moved 1000 bytes of "bytes 5-9/*"`},
			{"PUT", map[string]string{HeaderBytes: "999"}, "memory 1000 bytes"},
			{"PUT", map[string]string{"X-Amz-Checksum-Crc32c": "AAAAAA=="}, "1000 bytes have X-Amz-Checksum-Crc32c"},
		} {
			s.hook = nil
			if status, _, err := request(t, &Transport{Client: c}, "PUT", url, body); status != 200 || err != nil {
				t.Fatalf("PUT: %d, %v", status, err)
			}
			requests := 0
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				requests++
				token := r.Header.Get(HeaderToken)
				if r.Method == http.MethodGet {
					labtest.Check(t, s.move(token, verbs.OpRDMAWrite, body))
				}
				w.Header().Set(HeaderReply, "200")
				for k, v := range test.header {
					w.Header().Set(k, v)
				}
				return true
			}
			_, _, err := request(t, &Transport{Client: c}, test.method, url, body)
			if err == nil || !strings.Contains(err.Error(), test.want) || requests != 1 {
				t.Errorf("%+v: %d requests, %v", test, requests, err)
			}
		}
		s.hook = nil
		s.objects["/bucket/long"] = make([]byte, most+1)
		if _, got, err := request(t, &Transport{Client: c}, "GET", s.web.URL+"/bucket/long", nil); len(got) != most+1 || err != nil || c.Stats().Fallbacks[bySize] != 1 {
			t.Errorf("an object that is longer than the memory: %d bytes, %v, %+v", len(got), err, c.Stats())
		}
	})
}

// TestClientCancel cancels requests that the server is working on. When they have returned, the server does
// not reach the memory any more, and another request can have it.
func TestClientCancel(t *testing.T) {
	labtest.RequireBoth(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		s.impatient = true
		for method, op := range map[string]verbs.Opcode{"GET": verbs.OpRDMAWrite, "PUT": verbs.OpRDMARead} {
			ctx, cancel := context.WithCancel(t.Context())
			returned, done := make(chan bool), make(chan error, 1)
			data := bytes.Repeat([]byte{'x'}, 10_000)
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				token := r.Header.Get(HeaderToken)
				if method == "GET" {
					labtest.Check(t, s.move(token, op, bytes.Clone(data)))
				}
				cancel()
				<-returned
				done <- s.move(token, op, data)
				return true
			}
			req := labtest.Must(http.NewRequestWithContext(ctx, method, s.web.URL+"/bucket/key", bytes.NewReader(data)))(t)
			if _, err := (&Transport{Client: c}).RoundTrip(req); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", method, err)
			}
			y := labtest.Must(c.NewBody(len(data)))(t) // it has the same memory
			clear(y.Bytes())
			close(returned)
			if err := <-done; err == nil || !bytes.Equal(y.Bytes(), make([]byte, len(data))) {
				t.Errorf("%s: the server has moved bytes after the request had returned: %v", method, err)
			}
			labtest.Check(t, y.Close())
			s.hook = nil
			if status, _, err := request(t, &Transport{Client: c}, "PUT", s.web.URL+"/bucket/key", data); status != 200 || err != nil {
				t.Errorf("PUT after that: %d, %v", status, err)
			}
		}
		if st := c.Stats(); st.Puts != 2 || st.Lent != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestLateWrite has a server that sends the object by HTTP and whose WRITEs come when another request has the
// memory: they do not reach it.
func TestLateWrite(t *testing.T) {
	labtest.RequireBoth(t)
	for _, answer := range []struct {
		status int
		reply  string
	}{{200, "501"}, {200, ""}, {501, "501"}, {400, ""}} {
		t.Run(fmt.Sprintf("%d,%s", answer.status, answer.reply), func(t *testing.T) {
			eachFake(t, ClientOptions{GetSize: 10_000}, func(t *testing.T, s *fakeStore, c *Client) {
				s.impatient = true
				var token string
				s.hook = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Header.Get(HeaderToken) == "" {
						return true
					}
					token = r.Header.Get(HeaderToken)
					w.Header().Set(HeaderReply, answer.reply)
					w.WriteHeader(answer.status)
					return true
				}
				if status, _, err := request(t, &Transport{Client: c}, "GET", s.web.URL+"/bucket/key", nil); status != 200 || err != nil || token == "" {
					t.Fatalf("GET: %d, %v, token %q", status, err, token)
				}
				y := labtest.Must(c.NewBody(10_000))(t) // it has the same memory
				defer y.Close()
				clear(y.Bytes())
				if err := s.move(token, verbs.OpRDMAWrite, bytes.Repeat([]byte{'x'}, 10_000)); err == nil || !bytes.Equal(y.Bytes(), make([]byte, 10_000)) {
					t.Errorf("the server has written to memory of another request: %v", err)
				}
			})
		})
	}
}

// TestBrokenHTTP ends connections of HTTP that had been used before. A GET is made again with a token of
// no use, by HTTP; net/http must not do it by itself, with the same one. A PUT fails.
func TestBrokenHTTP(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		tr, url, body := &Transport{Client: c}, s.web.URL+"/bucket/key", labtest.RandomBytes(1, 1000)
		for _, method := range []string{"GET", "PUT"} {
			s.hook = nil
			if status, _, err := request(t, tr, "PUT", url, body); status != 200 || err != nil {
				t.Fatalf("PUT: %d, %v", status, err)
			}
			s.seen()
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				if r.Header.Get(HeaderToken) == "" {
					return false
				}
				conn, _, err := http.NewResponseController(w).Hijack()
				labtest.Check(t, err, conn.Close())
				return true
			}
			status, got, err := request(t, tr, method, url, body)
			tokens := s.seen()
			if method == "GET" && (status != 200 || err != nil || !bytes.Equal(got, body) || len(tokens) != 2 || tokens[0] == "" || tokens[1] != "") {
				t.Errorf("GET: %d, %d bytes, %v, tokens %q", status, len(got), err, tokens)
			}
			if method == "PUT" && (err == nil || len(tokens) != 1) {
				t.Errorf("PUT: %d, %v, tokens %q", status, err, tokens)
			}
		}
	})
}

// TestReconnect lets the server lose its end of connections. A request or two use HTTP, and then
// there is another connection.
func TestReconnect(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		if c.dc != nil {
			t.Skip("DC has no connections")
		}
		for _, answer := range []int{http.StatusInternalServerError, http.StatusNotImplemented} {
			s.forget()
			s.hook = func(w http.ResponseWriter, r *http.Request) bool {
				rc, err := ParseRCToken(r.Header.Get(HeaderToken))
				if err == nil && s.ends[rc.Conn] == nil {
					w.WriteHeader(answer)
					return true
				}
				return false
			}
			before := c.Stats().Puts
			for range 4 {
				if status, _, err := request(t, &Transport{Client: c}, "PUT", s.web.URL+"/bucket/key", []byte("hello")); status != 200 || err != nil {
					t.Errorf("PUT: %d, %v", status, err)
				}
			}
			if puts := c.Stats().Puts - before; puts < 2 {
				t.Errorf("%d of 4 PUTs by RDMA after answers with %d", puts, answer)
			}
		}
		// A queue pair that has failed at this side is not used at all.
		for _, h := range c.hosts {
			labtest.Check(t, h.idle[0].qp.Modify(verbs.QPAttr{State: verbs.StateErr}, verbs.MaskState))
		}
		before := c.Stats()
		request(t, &Transport{Client: c}, "PUT", s.web.URL+"/bucket/key", []byte("hello"))
		if after := c.Stats(); after.Puts != before.Puts+1 || after.Idle != 1 {
			t.Errorf("%+v after a queue pair has failed", after)
		}
	})
}

// TestManyHosts uses a server by many names, as with buckets in the host's name: queue pairs that are idle for long end
// with requests to other hosts, and servers are forgotten.
func TestManyHosts(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		const hosts = sweepMost + 4
		tr := &Transport{Client: c, Base: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if strings.HasPrefix(addr, "none") {
				return nil, io.ErrUnexpectedEOF
			}
			return new(net.Dialer).DialContext(ctx, network, s.web.Listener.Addr().String())
		}}}
		put := func(format string, i int) {
			t.Helper()
			status, _, err := request(t, tr, "PUT", fmt.Sprintf("http://"+format+".test/bucket/key", i), []byte("hello"))
			if none := strings.HasPrefix(format, "none"); (err != nil) != none || !none && status != 200 {
				t.Fatalf("PUT to host %d: %d, %v", i, status, err)
			}
		}
		later := func(d time.Duration) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.swept = c.swept.Add(-d)
			for _, h := range c.hosts {
				h.used, h.resume = h.used.Add(-d), h.resume.Add(-d)
				for _, q := range h.idle {
					q.used = q.used.Add(-d)
				}
			}
		}
		check := func(when string, hosts, idle int) {
			t.Helper()
			if st := c.Stats(); len(c.hosts) != hosts || c.dc == nil && st.Idle != idle {
				t.Errorf("%s: %d hosts, %d idle queue pairs, want %d and %d", when, len(c.hosts), st.Idle, hosts, idle)
			}
		}
		for i := range hosts {
			put("bucket%d", i)
			put("none%d", i)
		}
		c.pause("http://plain.test") // which has no RDMA
		check("first", hosts+1, hosts)
		later(idleTime)
		put("other%d", 0)
		check("after a minute and a request", len(c.hosts), hosts-sweepMost+1)
		put("other%d", 0)
		check("after two", hosts+1, 1)
		later(knownTime)
		put("other%d", 0)
		check("after an hour", 1, 1)
		labtest.Until(t, "the server has one connection", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.ends) <= 1
		})
	})
}

// TestServerDies removes the server's machine while it answers.
func TestServerDies(t *testing.T) {
	labtest.Require(t)
	for _, method := range []string{"PUT", "GET"} {
		t.Run(method, func(t *testing.T) {
			eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
				if s.network == nil {
					t.Skip("needs a machine that can die")
				}
				s.hook = func(w http.ResponseWriter, r *http.Request) bool {
					s.network.Remove(netip.MustParseAddr("10.0.0.2"))
					panic(http.ErrAbortHandler)
				}
				if _, _, err := request(t, &Transport{Client: c}, method, s.web.URL+"/bucket/key", []byte("hello")); err == nil {
					t.Error("no error")
				}
			})
		})
	}
}

// TestObjectRequests tells requests that move objects from those for properties, buckets and copies.
func TestObjectRequests(t *testing.T) {
	for _, test := range []struct {
		method, url, header string
		want                bool
	}{
		{"GET", "/b/k", "", true}, {"PUT", "/b/k", "", true}, {"GET", "/b", "", true}, {"PUT", "/b", "", false}, {"PUT", "/b/", "", false},
		{"GET", "/", "", false}, {"HEAD", "/b/k", "", false}, {"POST", "/b/k", "", false}, {"DELETE", "/b/k", "", false},
		{"PUT", "/k?x-id=PutObject", "", true}, {"PUT", "/k?x-id=UploadPart", "", true}, {"PUT", "/k?x-id=CreateBucket", "", false},
		{"PUT", "/b/k?partNumber=1&uploadId=2", "", true}, {"GET", "/b/k?versionId=3", "", true}, {"GET", "/b/k?response-expires=4", "", true},
		{"PUT", "/b/k?response-expires=4", "", false}, {"GET", "/b/k?acl", "", false}, {"PUT", "/b/k?acl", "", false},
		{"PUT", "/b/k", "X-Amz-Copy-Source", false}, {"PUT", "/b/k", "Idempotency-Key", false}, {"PUT", "/b/k", "X-Idempotency-Key", false}, {"PUT", "/b/k", "X-Amz-Meta-A", true},
	} {
		r := httptest.NewRequest(test.method, "http://store"+test.url, nil)
		if test.header != "" {
			r.Header.Set(test.header, "1")
		}
		if got := isObject(r); got != test.want {
			t.Errorf("%s %s with %q: %t", test.method, test.url, test.header, got)
		}
	}
}

// TestSign checks that what is signed is what is sent, for each attempt, and that a signed request is
// left alone without Sign.
func TestSign(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		text := func(r *http.Request) string {
			return fmt.Sprintf("%s|%s|%s|%d", r.Method, r.Header.Get(HeaderToken), r.Header.Get("X-Amz-Checksum-Crc32c"), max(r.ContentLength, 0))
		}
		tr := &Transport{Client: c, Sign: func(r *http.Request) error {
			r.Header.Set("Authorization", text(r))
			return nil
		}}
		requests := 0
		s.web.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests++
			if got, want := r.Header.Get("Authorization"), text(r); got != want {
				t.Errorf("%s %s: signed %q, sent %q", r.Method, r.URL, got, want)
			}
			if r.Method == http.MethodPut && requests == 3 {
				w.Header().Set(HeaderReply, "501")
				return
			}
			s.ServeHTTP(w, r)
		})
		for range 2 {
			if status, _, err := request(t, tr, "PUT", s.web.URL+"/bucket/key", []byte("hello")); status != 200 || err != nil {
				t.Errorf("PUT: %d, %v", status, err)
			}
		}
		if _, got, err := request(t, tr, "GET", s.web.URL+"/bucket/key", nil); string(got) != "hello" || err != nil {
			t.Errorf("GET: %q, %v", got, err)
		}
		if st := c.Stats(); st.Puts+st.Fallbacks[byDeclined] != 2 || st.Gets != 1 {
			t.Errorf("%+v", st)
		}
		s.web.Config.Handler = s
		for _, url := range []string{"/bucket/key?X-Amz-Signature=0", "/bucket/key"} {
			s.seen()
			request(t, &Transport{Client: c}, "PUT", s.web.URL+url, []byte("hello"), "Authorization", "AWS4-HMAC-SHA256 Credential=x")
			if tokens := s.seen(); !slices.Equal(tokens, []string{""}) {
				t.Errorf("PUT %s: tokens %q", url, tokens)
			}
		}
		refused := errors.New("no key")
		tr = &Transport{Client: c, Sign: func(*http.Request) error { return refused }} // another: the client may still use tr to disconnect
		if _, _, err := request(t, tr, "PUT", s.web.URL+"/bucket/key", []byte("hello")); !errors.Is(err, refused) {
			t.Errorf("PUT that cannot be signed: %v", err)
		}
		// Its body is closed, also if the attempt after an offer cannot be signed.
		s.hook = func(w http.ResponseWriter, r *http.Request) bool {
			w.WriteHeader(http.StatusNotImplemented)
			return true
		}
		tr = &Transport{Client: c, Sign: func(r *http.Request) error {
			if r.Method == http.MethodPut && r.Header.Get(HeaderToken) == "" {
				return refused
			}
			return nil
		}}
		for _, path := range []string{"/bucket", "/bucket/key"} {
			body := &closed{Reader: strings.NewReader("hello")}
			req := labtest.Must(http.NewRequest("PUT", s.web.URL+path, body))(t)
			req.ContentLength = 5
			if _, err := tr.RoundTrip(req); !errors.Is(err, refused) || !body.closed {
				t.Errorf("PUT %s: %v, closed %t", path, err, body.closed)
			}
			if st := c.Stats(); st.Lent != 0 {
				t.Errorf("PUT %s: %+v", path, st)
			}
		}
	})
}

// TestPanics has a Sign or a body that panics, in a program that recovers, as net/http's server does: the body is
// closed, and nothing is lent or left, which eachFake checks. A panic in a goroutine of the client's is none of the program's.
func TestPanics(t *testing.T) {
	labtest.Require(t)
	for _, name := range []string{"connect", "body", "offer", "again", "disconnect"} {
		t.Run(name, func(t *testing.T) {
			eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
				if c.dc != nil && strings.HasSuffix(name, "connect") {
					t.Skip("DC has no connections")
				}
				s.hook = func(w http.ResponseWriter, r *http.Request) bool {
					w.WriteHeader(http.StatusNotImplemented)
					return true
				}
				body := &closed{Reader: strings.NewReader("hello")}
				if name == "body" {
					body.Reader = readerFunc(func([]byte) (int, error) { panic(name) })
				}
				tr := &Transport{Client: c, Sign: func(r *http.Request) error {
					step := "again"
					switch token := r.Header.Get(HeaderToken); {
					case r.URL.Path == PathConnect:
						step = "connect"
					case r.URL.Path == PathDisconnect:
						step = "disconnect"
					case token != "":
						step = "offer"
					}
					if step == name {
						panic(name)
					}
					return nil
				}}
				req := labtest.Must(http.NewRequest("PUT", s.web.URL+"/bucket/key", body))(t)
				req.ContentLength = 5
				defer func() {
					if r := recover(); (r == name) == (name == "disconnect") || !body.closed {
						t.Errorf("recovered %v, body closed: %t", r, body.closed)
					}
				}()
				tr.RoundTrip(req)
			})
		})
	}
}

// TestStalledBody cancels a PUT whose body does not come.
func TestStalledBody(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		ctx, cancel := context.WithCancel(t.Context())
		body, w := io.Pipe()
		req := labtest.Must(http.NewRequestWithContext(ctx, "PUT", s.web.URL+"/bucket/key", body))(t)
		req.ContentLength = 5
		go func() {
			w.Write([]byte("h"))
			cancel()
		}()
		if _, err := (&Transport{Client: c}).RoundTrip(req); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if st := c.Stats(); st.Lent != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestNoBody has a length, and no body.
func TestNoBody(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		for _, ctx := range []context.Context{t.Context(), ended} {
			req := labtest.Must(http.NewRequestWithContext(ctx, "PUT", s.web.URL+"/bucket/key", nil))(t)
			req.ContentLength = 5
			if _, err := (&Transport{Client: c}).RoundTrip(req); err == nil {
				t.Error("no error")
			}
		}
	})
}

// TestHTTP2 has queue pairs that end: the connection, which all requests share, does not.
func TestHTTP2(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		if c.dc != nil {
			t.Skip("RC has queue pairs that end")
		}
		var made atomic.Int32
		web := httptest.NewUnstartedServer(s)
		web.EnableHTTP2 = true
		web.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				made.Add(1)
			}
		}
		web.StartTLS()
		defer web.Close()
		tr := &Transport{Client: c, Base: web.Client().Transport}
		for range 3 {
			if status, _, err := request(t, tr, "PUT", web.URL+"/bucket/key", []byte("hello")); status != 200 || err != nil {
				t.Fatalf("PUT: %d, %v", status, err)
			}
			c.mu.Lock()
			h := c.host(web.URL)
			idle := h.idle
			h.idle = nil
			c.mu.Unlock()
			for _, q := range idle {
				c.disconnect(q)
			}
			c.jobs.Wait()
		}
		if st := c.Stats(); st.Puts != 3 || made.Load() != 1 || len(s.gone) != 3 {
			t.Errorf("%d connections for %d requests by RDMA, %d queue pairs are gone", made.Load(), st.Puts, len(s.gone))
		}
		tr.CloseIdleConnections()
		if status, _, err := request(t, tr, "PUT", web.URL+"/bucket/key", []byte("hello")); status != 200 || err != nil || made.Load() != 2 {
			t.Errorf("PUT: %d, %v, on connection %d, after idle ones were closed", status, err, made.Load())
		}
	})
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// writerFunc is an io.Writer.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// closed is a body that knows whether it is closed.
type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return nil
}

// TestOldToken registers a buffer again and again: no token leads to it under a later one, although its
// memory is the same and a device may give it the same key.
func TestOldToken(t *testing.T) {
	labtest.RequireBoth(t)
	c := labtest.Made(NewClient(ClientOptions{Device: labtest.RoCE}))(t)
	b := labtest.Must(c.buffer(1))(t)
	defer b.drop()
	last := uint64(0)
	for range 100 {
		labtest.Check(t, b.register())
		if addr := b.mr.Addr(); addr == last || addr<<16 != b.mem.Addr()<<16 {
			t.Fatalf("a region of memory at %#x has address %#x, as the last one has %#x", b.mem.Addr(), addr, last)
		}
		last = b.mr.Addr()
		b.revoke()
	}
}

// TestBody uses registered memory as a body, without a copy, and an answer's.
func TestBody(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{}, func(t *testing.T, s *fakeStore, c *Client) {
		want := labtest.RandomBytes(1, 100_000)
		y := labtest.Must(c.NewBody(len(want)))(t)
		copy(y.Bytes(), want)
		addr, token, memory := uint64(0), "", y.b
		s.hook = func(w http.ResponseWriter, r *http.Request) bool {
			token = r.Header.Get(HeaderToken)
			addr = memory.mr.Addr()
			return false
		}
		tr := &Transport{Client: c}
		labtest.Must(y.Seek(10, io.SeekStart))(t)
		resp := labtest.Must(tr.RoundTrip(labtest.Must(http.NewRequest("PUT", s.web.URL+"/bucket/key", y))(t)))(t)
		if resp.StatusCode != 200 || !strings.Contains(token, fmt.Sprintf("%016x:%08x:", addr+10, len(want)-10)) {
			t.Errorf("PUT: %s, token %s of memory at %x", resp.Status, token, addr)
		}
		if _, err := y.Read(make([]byte, 1)); !errors.Is(err, http.ErrBodyReadAfterClose) || y.Bytes() != nil {
			t.Errorf("the body is not closed: %v", err)
		}
		s.hook = nil

		resp = labtest.Must(tr.RoundTrip(labtest.Must(http.NewRequestWithContext(WithSize(t.Context(), int64(len(want))), "GET", s.web.URL+"/bucket/key", nil))(t)))(t)
		b := resp.Body.(*Body)
		labtest.Check(t, iotest.TestReader(b, want[10:]))
		labtest.Must(b.Seek(0, io.SeekStart))(t)
		if n, err := io.Copy(writerFunc(func(p []byte) (int, error) { return 7, nil }), b); n != 7 || err != io.ErrShortWrite || b.Len() != len(want)-17 {
			t.Errorf("a short write of %d bytes: %v, %d bytes are left", n, err, b.Len())
		}
		labtest.Must(b.Seek(5, io.SeekStart))(t)
		var copied bytes.Buffer
		if n, err := io.Copy(&copied, b); n != int64(len(want)-15) || err != nil || !bytes.Equal(copied.Bytes(), want[15:]) || b.Len() != 0 {
			t.Errorf("copied %d bytes, %v", n, err)
		}
		for _, off := range []int64{-1, int64(len(want)) - 9} {
			if n, err := b.Seek(off, io.SeekStart); n != 0 || err == nil {
				t.Errorf("seek to %d of %d: %d, %v", off, len(want)-10, n, err)
			}
		}
		if err := c.Close(); !errors.Is(err, verbs.ErrInUse) {
			t.Errorf("Close of a client whose memory is in use: %v", err)
		}
		labtest.Check(t, b.Close(), b.Close())
		if _, err := b.WriteTo(io.Discard); !errors.Is(err, http.ErrBodyReadAfterClose) {
			t.Errorf("WriteTo after Close: %v", err)
		}
		for _, v := range []io.Closer{(*Body)(nil), (*Offer)(nil), (*Client)(nil)} {
			if err := v.Close(); !errors.Is(err, verbs.ErrClosed) {
				t.Errorf("%T: %v", v, err)
			}
		}
		// A body that fails, or has another length, is no object.
		for _, body := range []io.Reader{strings.NewReader("four"), strings.NewReader("sixsix"), iotest.ErrReader(io.ErrNoProgress)} {
			req := labtest.Must(http.NewRequest("PUT", s.web.URL+"/bucket/key", io.NopCloser(body)))(t)
			req.ContentLength = 5
			if _, err := tr.RoundTrip(req); err == nil {
				t.Error("a PUT of 5 bytes with another body has no error")
			}
		}
		if st := c.Stats(); st.Lent != 0 || st.Puts != 1 || st.Gets != 1 {
			t.Errorf("%+v", st)
		}
	})
}

// TestMemory fills the memory of a client. What has no room uses HTTP.
func TestMemory(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{Memory: 700_000, GetSize: 200_000}, func(t *testing.T, s *fakeStore, c *Client) {
		tr, url := &Transport{Client: c}, s.web.URL+"/bucket/"
		for i, size := range []int{1 << 20, 600_000, 100_000, 160_000, 400_000, 640 << 10} {
			if status, _, err := request(t, tr, "PUT", url+strconv.Itoa(i), make([]byte, size)); status != 200 || err != nil {
				t.Errorf("PUT: %d, %v", status, err)
			}
			if st := c.Stats(); st.Puts != uint64(i) || st.Registered > 700_000 || st.Fallbacks[byMemory] != 1 {
				t.Errorf("%d bytes: %+v", size, st)
			}
		}
		var bodies []io.Closer
		for range 4 {
			resp := labtest.Must(tr.RoundTrip(labtest.Must(http.NewRequest("GET", url+"3", nil))(t)))(t)
			bodies = append(bodies, resp.Body)
			if n, err := io.Copy(io.Discard, resp.Body); n != 160_000 || err != nil {
				t.Errorf("%d bytes, %v", n, err)
			}
		}
		if st := c.Stats(); st.Gets != 3 || st.Lent != 3 || st.Fallbacks[byMemory] != 2 {
			t.Errorf("%+v", st)
		}
		for _, b := range bodies {
			b.Close()
		}
		if _, err := c.NewBody(700_001); err == nil || !regexp.MustCompile(`at most 700000 .*Memory`).MatchString(err.Error()) {
			t.Errorf("a body of 700001 bytes: %v", err)
		}
	})
}

// TestMinSize moves objects around the least that goes by RDMA.
func TestMinSize(t *testing.T) {
	labtest.Require(t)
	eachFake(t, ClientOptions{MinSize: 5000}, func(t *testing.T, s *fakeStore, c *Client) {
		tr, url := &Transport{Client: c}, s.web.URL+"/bucket/"
		for _, size := range []int{4999, 5000} {
			if status, _, err := request(t, tr, "PUT", url+"key", make([]byte, size)); status != 200 || err != nil {
				t.Errorf("PUT: %d, %v", status, err)
			}
			for _, how := range []string{"range", "size", "unknown"} {
				req := labtest.Must(http.NewRequest("GET", url+"key", nil))(t)
				switch how {
				case "range":
					req.Header.Set("Range", fmt.Sprintf("bytes=0-%d", size-1))
				case "size":
					req = req.WithContext(WithSize(t.Context(), int64(size)))
				}
				resp := labtest.Must(tr.RoundTrip(req))(t)
				if n, err := io.Copy(io.Discard, resp.Body); n != int64(size) || err != nil {
					t.Errorf("GET of %d bytes, %s: %d, %v", size, how, n, err)
				}
				resp.Body.Close()
			}
		}
		if st := c.Stats(); st.Puts != 1 || st.Gets != 4 || st.Fallbacks[bySmall] != 3 {
			t.Errorf("%+v", st)
		}
	})
}

// TestMemoryRefused asks for more memory than the system has: it does not count as in use.
func TestMemoryRefused(t *testing.T) {
	c := &Client{opt: ClientOptions{Memory: math.MaxInt}}
	b, err := c.buffer(math.MaxInt / 2)
	if err == nil {
		b.free()
		t.Skip("the system has that much for a process of 32 bits")
	}
	if c.registered != 0 || c.lent != 0 {
		t.Errorf("%v; %d bytes in %d buffers are in use", err, c.registered, c.lent)
	}
}

// TestLimitsInLog reads why requests have used HTTP: the log has the number and the limit.
func TestLimitsInLog(t *testing.T) {
	labtest.Require(t)
	var log bytes.Buffer
	c := labtest.Made(NewClient(ClientOptions{Device: labtest.RoCE, RC: true, Memory: 5000, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}))(t)
	for _, test := range []struct {
		method string
		size   int64
		want   []string
	}{
		{"PUT", MaxSize + 1, []string{"reason=size", "1073741825", "1073741824"}},
		{"GET", MaxSize + 1, []string{"reason=size", "1073741825", "1073741824"}},
		{"GET", math.MaxInt64, []string{"reason=size", "9223372036854775807", "1073741824"}},
		{"PUT", 5001, []string{"reason=memory", "5000"}},
	} {
		log.Reset()
		req := labtest.Must(http.NewRequestWithContext(WithSize(t.Context(), test.size), test.method, "http://127.0.0.1:1/bucket/key", nil))(t)
		if test.method == "PUT" {
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader("")), test.size
		}
		if o, err := c.Offer(req); o != nil || err != nil {
			t.Errorf("%s of %d bytes: an offer, or %v", test.method, test.size, err)
		}
		for _, want := range test.want {
			if !strings.Contains(log.String(), want) {
				t.Errorf("%s of %d bytes: want %s in %s", test.method, test.size, want, &log)
			}
		}
	}
}

func TestClientOptions(t *testing.T) {
	labtest.Require(t)
	for want, opt := range map[string]ClientOptions{
		"CRC32, CRC32C": {Checksum: "MD5"}, "want less than 1073741824": {GetSize: 1 << 30}, "no such RDMA device": {Device: "nix"}, "Memory -1": {Memory: -1}, "MinSize -1": {MinSize: -1},
	} {
		if c, err := NewClient(opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, %v", opt, c, err)
		}
	}
	for header, want := range map[string]int64{"bytes=0-99": 100, "bytes=5-5": 1, "bytes=-7": 7, "bytes=7-": 0, "bytes=9-1": 0, "": 0, "bytes=0-1,3-4": 0, "bytes=-": 0, "bytes=0-99999999999999999999": 0} {
		if got := rangeLength(header); got != want {
			t.Errorf("%q: %d, want %d", header, got, want)
		}
	}
}

func sum(counts map[string]uint64) (n uint64) {
	for _, v := range counts {
		n += v
	}
	return n
}
