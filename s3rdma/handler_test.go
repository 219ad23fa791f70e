//go:build linux

package s3rdma

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
)

func hex6(v uint32) string { return fmt.Sprintf("%06x", v) }

// object is what the handlers below have: several rounds of a ring of 4 parts, and an odd rest.
var object = labtest.RandomBytes(1, 300_017)

// store is a server of one object.
type store struct {
	http.ServeMux
	mu     sync.Mutex
	stored []byte
	length int64
	calls  map[string]int
}

func (s *store) count(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[name]++
}

func (s *store) put(body []byte, length int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stored, s.length = body, length
}

func newStore() *store {
	s := &store{calls: map[string]int{}}
	s.HandleFunc("GET /o", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "o.bin", time.Unix(1e9, 0), bytes.NewReader(object))
	})
	s.HandleFunc("GET /stream", func(w http.ResponseWriter, r *http.Request) { // no length, with flushes
		c := http.NewResponseController(w)
		if err := errors.Join(c.SetReadDeadline(time.Time{}), c.SetWriteDeadline(time.Time{})); err != nil {
			panic(err)
		}
		for range 100 {
			w.Write(object[:1000])
			c.Flush()
		}
	})
	s.HandleFunc("GET /long", func(w http.ResponseWriter, r *http.Request) { w.Write(append(object, object...)) })
	s.HandleFunc("GET /longcopy", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(w, io.MultiReader(bytes.NewReader(object), bytes.NewReader(object)))
	})
	s.HandleFunc("GET /exactcopy", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		io.Copy(w, io.MultiReader(bytes.NewReader(object)))
	})
	s.HandleFunc("GET /known", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(2*len(object)))
		w.Write(append(object, object...))
	})
	s.HandleFunc("GET /short", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", strconv.Itoa(len(object)))
		w.Header().Set("ETag", `"x"`)
		w.Write(object[:200_000])
	})
	s.HandleFunc("GET /buffer", func(w http.ResponseWriter, r *http.Request) {
		for rest := object; len(rest) > 0; {
			buf, err := w.(BufferWriter).Buffer()
			if err != nil {
				panic(err)
			}
			n := copy(buf, rest)
			rest = rest[n:]
			for _, wrong := range []int{-1, len(buf) + 1} {
				if err := w.(BufferWriter).Advance(wrong); !errors.Is(err, verbs.ErrRange) {
					panic(fmt.Sprintf("advance %d of %d bytes: %v", wrong, len(buf), err))
				}
			}
			if err := w.(BufferWriter).Advance(n); err != nil {
				panic(err)
			}
		}
	})
	s.HandleFunc("GET /empty", func(w http.ResponseWriter, r *http.Request) {})
	s.HandleFunc("GET /panic", func(w http.ResponseWriter, r *http.Request) {
		s.count("panic")
		w.Write(object[:200_000])
		panic(http.ErrAbortHandler)
	})
	s.HandleFunc("PUT /o", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "IncompleteBody", http.StatusBadRequest)
			return
		}
		s.put(body, r.ContentLength)
		w.Header().Set("ETag", fmt.Sprintf("%q", fmt.Sprint(len(body))))
	})
	s.HandleFunc("PUT /copy", func(w http.ResponseWriter, r *http.Request) {
		var b bytes.Buffer
		n, err := r.Body.(io.WriterTo).WriteTo(struct{ io.Writer }{&b})
		if err != nil || n != r.ContentLength {
			panic(fmt.Sprint(n, err))
		}
		s.put(b.Bytes(), r.ContentLength)
		w.WriteHeader(http.StatusNoContent)
	})
	s.HandleFunc("PUT /body", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if n := r.Header.Get("Content-Length"); err != nil || n != strconv.Itoa(len(body)) {
			panic(fmt.Sprint(n, len(body), err))
		}
		s.put(body, r.ContentLength)
		io.WriteString(w, "stored") // which no answer to a transfer has
	})
	s.HandleFunc("PUT /denied", func(w http.ResponseWriter, r *http.Request) { http.Error(w, "AccessDenied", http.StatusForbidden) })
	s.HandleFunc("PUT /ignore", func(w http.ResponseWriter, r *http.Request) { io.ReadFull(r.Body, make([]byte, 100)) })
	s.HandleFunc("PUT /panic", func(w http.ResponseWriter, r *http.Request) {
		io.ReadFull(r.Body, make([]byte, 100))
		panic(http.ErrAbortHandler)
	})
	return s
}

// TestHandler has an answer of each kind.
func TestHandler(t *testing.T) {
	s := newStore()
	eachRig(t, ServerOptions{}, s, func(t *testing.T, r *rig) {
		c := r.client(len(object))
		token := c.token(len(object))
		length := strconv.Itoa(len(object))
		for _, test := range []struct {
			path   string
			header []string
			status int
			reply  string
			moved  []byte // by RDMA
			body   string // by HTTP
		}{
			{"/o", nil, 200, "200", object, ""},
			{"/o", []string{"Range", "bytes=1000-200999"}, 206, "206", object[1000:201_000], ""},
			{"/o", []string{"Range", "bytes=999999-"}, 416, "", nil, "invalid range: failed to overlap\n"},
			{"/o", []string{"If-Modified-Since", "Sun, 09 Sep 2001 01:46:40 GMT"}, 304, "", nil, ""},
			{"/none", nil, 404, "", nil, "404 page not found\n"},
			{"/exactcopy", nil, 200, "200", object, ""},
			{"/buffer", nil, 200, "200", object, ""},
			{"/empty", nil, 200, "200", []byte{}, ""},
			{"/stream", nil, 200, "200", bytes.Repeat(object[:1000], 100), ""},
			{"/known", nil, 200, "501", nil, string(object) + string(object)},
			{"/long", nil, 500, "", nil, "RDMATransferFailed"},
			{"/longcopy", nil, 500, "", nil, "RDMATransferFailed"},
			{"/short", nil, 500, "", nil, "wrote 200000 of 300017 bytes"},
		} {
			c.fill(nil)
			got := r.do("GET", test.path, token, test.header...)
			same := got.body == test.body
			if test.status == 500 {
				same = strings.Contains(got.body, test.body) && got.Header.Get("ETag") == ""
			}
			if got.err != nil || got.StatusCode != test.status || got.reply != test.reply || !same {
				t.Errorf("GET %s %v: %v, %d, reply %q, body %.200q", test.path, test.header, got.err, got.StatusCode, got.reply, got.body)
			}
			if test.moved != nil && (!c.has(test.moved) || got.moved != strconv.Itoa(len(test.moved)) || got.ContentLength != 0) {
				t.Errorf("GET %s %v: moved %q, length %d, or other bytes", test.path, test.header, got.moved, got.ContentLength)
			}
			if test.moved == nil && got.moved != "" {
				t.Errorf("GET %s: moved %s", test.path, got.moved)
			}
			if id := got.Header.Get("Content-Range"); test.status == 206 && id != "bytes 1000-200999/"+length {
				t.Errorf("range %q", id)
			}
			r.idle()
			if c.id != "" && got.StatusCode == 500 {
				c = r.client(len(object)) // the connection has ended, if requests were in flight
				token = c.token(len(object))
			}
		}
		if got := r.do("GET", "/o", token, "Range", "bytes=0-9,20-29"); got.StatusCode != 206 || got.reply != "206" ||
			!strings.HasPrefix(got.Header.Get("Content-Type"), "multipart/byteranges") || !bytes.Contains(c.mr.Bytes(), object[20:30]) {
			t.Errorf("two ranges: %d, reply %q", got.StatusCode, got.reply)
		}
		if got := r.do("HEAD", "/o", token); got.StatusCode != 200 || got.reply != "" || got.ContentLength != int64(len(object)) {
			t.Errorf("HEAD: %d, reply %q, length %d", got.StatusCode, got.reply, got.ContentLength)
		}
		if got := r.do("GET", "/o", ""); got.body != string(object) || got.reply != "" {
			t.Errorf("without a token: %d bytes, reply %q", len(got.body), got.reply)
		}
		// What is short enough goes by HTTP at the last moment.
		for _, path := range []string{"/long", "/longcopy"} {
			if got := r.do("GET", path, c.token(10_000)); got.StatusCode != 200 || got.reply != "501" || got.body != string(object)+string(object) {
				t.Errorf("GET %s with little memory: %d, reply %q, %d bytes", path, got.StatusCode, got.reply, len(got.body))
			}
		}

		c.fill(object)
		for _, test := range []struct {
			path   string
			size   int
			status int
			reply  string
		}{
			{"/o", len(object), 200, "200"},
			{"/o", 1, 200, "200"},
			{"/o", 0, 200, "200"},
			{"/o", 64 << 10, 200, "200"},
			{"/copy", len(object), 204, "204"},
			{"/body", 1, 200, "200"},
			{"/denied", len(object), 403, ""},
			{"/ignore", len(object), 200, ""},
		} {
			s.put(nil, -1)
			got := r.do("PUT", test.path, c.token(test.size))
			if got.err != nil || got.StatusCode != test.status || got.reply != test.reply || test.reply == "200" && (got.body != "" || got.ContentLength != 0) {
				t.Errorf("PUT %s of %d bytes: %v, %d, reply %q, %q", test.path, test.size, got.err, got.StatusCode, got.reply, got.body)
			}
			if test.reply != "" && (!bytes.Equal(s.stored, object[:test.size]) || s.length != int64(test.size) || got.moved != strconv.Itoa(test.size)) {
				t.Errorf("PUT %s of %d bytes: stored %d, length %d, moved %q", test.path, test.size, len(s.stored), s.length, got.moved)
			}
			r.idle()
			if test.path == "/ignore" && c.id != "" {
				c = r.client(len(object)) // READs were in flight
			}
		}

		// A panic ends the HTTP connection, and nothing is claimed.
		for _, method := range []string{"GET", "PUT"} {
			if got := r.do(method, "/panic", c.token(len(object))); got.err == nil {
				t.Errorf("%s /panic: %d, reply %q", method, got.StatusCode, got.reply)
			}
			r.idle()
			c = r.client(len(object))
		}
		if s.calls["panic"] != 1 {
			t.Errorf("the handler that panics ran %d times", s.calls["panic"])
		}
		s.calls["panic"] = 0

		for _, bad := range []string{"x", c.token(100) + "0", "rc:" + strings.Repeat("0", 10)} {
			for _, method := range []string{"GET", "PUT"} {
				if got := r.do(method, "/o", bad); got.StatusCode != 400 || !strings.Contains(got.body, "<Code>InvalidRDMAToken</Code>") || got.reply != "" {
					t.Errorf("%s with token %q: %d %q", method, bad, got.StatusCode, got.body)
				}
			}
		}
		s.put(nil, -1)
		for _, gone := range []string{RCToken{Conn: strings.Repeat("0", 32), Size: 10}.String(), QPToken{}.String()} {
			if got := r.do("GET", "/o", gone); got.StatusCode != 200 || got.reply != "501" || got.body != string(object) {
				t.Errorf("GET with token %q: %d, reply %q, %d bytes", gone, got.StatusCode, got.reply, len(got.body))
			}
			if got := r.do("PUT", "/o", gone); got.StatusCode != 200 || got.reply != "501" || !strings.Contains(got.body, "RDMANotSupported") || s.length != -1 {
				t.Errorf("PUT with token %q: %d, reply %q, stored %d", gone, got.StatusCode, got.reply, s.length)
			}
		}
		st := r.srv.Stats()
		t.Logf("%+v", st)
		if st.Gets != 7 || st.Puts != 6 || st.PutBytes != uint64(2*len(object)+2+64<<10) || st.Failed != 3 || st.Declined[ReasonLength] != 3 ||
			st.Declined[ReasonConnection] != 2 || st.Declined[ReasonTransport] != 2 {
			t.Error("other figures")
		}
	})
}

// TestMany has more clients than there are queue pairs and memory for, each with an object of its own.
func TestMany(t *testing.T) {
	var mu sync.Mutex
	objects := map[string][]byte{}
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return // the answer says why
		}
		mu.Lock()
		defer mu.Unlock()
		objects[r.PathValue("name")] = body
	})
	mux.HandleFunc("GET /{name}", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		body := objects[r.PathValue("name")]
		mu.Unlock()
		http.ServeContent(w, r, "o.bin", time.Time{}, bytes.NewReader(body))
	})
	const memory = 5 * 64 << 10
	opt := ServerOptions{Memory: memory, Limits: Limits{AccountBytes: 1 << 20, Wait: time.Minute}, Fabric: Fabric{DCIs: 4, Timeout: 18, RetryCount: 7}}
	eachRig(t, opt, mux, func(t *testing.T, r *rig) {
		var all sync.WaitGroup
		for i := range 16 {
			c := r.client(len(object))
			all.Go(func() {
				for round := range labtest.Rounds(10, 3) {
					path, size := fmt.Sprintf("/%d", i), 1+(i*31_337+round*65_536)%len(object)
					want := labtest.RandomBytes(100*i+round, size)
					c.fill(want)
					if got := r.do("PUT", path, c.token(size)); got.reply != "200" {
						t.Errorf("PUT %s: %v, %d, reply %q", path, got.err, got.StatusCode, got.reply)
					}
					c.fill(nil)
					if got := r.do("GET", path, c.token(size)); got.reply != "200" || !c.has(want) {
						t.Errorf("GET %s: %v, %d, reply %q", path, got.err, got.StatusCode, got.reply)
					}
				}
			})
		}
		all.Wait()
		if st := r.srv.Stats(); r.dc && st.DCIs > 4 || st.Connections != map[bool]int{false: 16}[r.dc] {
			t.Errorf("%+v", st)
		}
	})
}

// sparse is an object of zeros, and of 100 bytes at 4 GiB.
type sparse struct{ off int64 }

func (s *sparse) Read(p []byte) (int, error) {
	clear(p)
	if at := s.off - 4<<30; at >= -int64(len(p)) && at < 100 {
		copy(p[max(-at, 0):], object[max(at, 0):100])
	}
	s.off += int64(len(p))
	return len(p), nil
}

func (s *sparse) Seek(off int64, whence int) (int64, error) {
	s.off = off
	if whence == io.SeekEnd {
		s.off += 5 << 30
	}
	return s.off, nil
}

// TestFarRange gets bytes beyond 4 GiB of an object that is longer than a transfer can be. Without the
// range it goes by HTTP.
func TestFarRange(t *testing.T) {
	s := newStore()
	s.HandleFunc("GET /sparse", func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "s.bin", time.Unix(1e9, 0), new(sparse))
	})
	eachRig(t, ServerOptions{}, s, func(t *testing.T, r *rig) {
		c := r.client(100)
		got := r.do("GET", "/sparse", c.token(100), "Range", "bytes=4294967296-4294967395")
		if got.reply != "206" || !c.has(object[:100]) || got.Header.Get("Content-Range") != "bytes 4294967296-4294967395/5368709120" {
			t.Errorf("%d, reply %q, %v", got.StatusCode, got.reply, got.Header)
		}
		req := labtest.Must(http.NewRequestWithContext(r.within(), "GET", r.http.URL+"/sparse", nil))(t)
		req.Header.Set(HeaderToken, c.token(100))
		resp := labtest.Must(http.DefaultClient.Do(req))(t)
		resp.Body.Close()
		if resp.ContentLength != 5<<30 || resp.Header.Get(HeaderReply) != "501" || r.srv.Stats().Declined[ReasonLength] == 0 {
			t.Errorf("without a range: %d bytes, %v, %+v", resp.ContentLength, resp.Header, r.srv.Stats())
		}
	})
}
