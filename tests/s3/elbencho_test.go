package s3

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/tests/s3/s3test"
)

// The judges of this file.
const (
	elbenchoServer = "s3rdma-server of elbencho (commit 48264d1)"
	elbenchoClient = "s3rdma-client of elbencho (commit 48264d1), by its libcuobjclient"
	hipobjClient   = "hipobj-v2-data-client of hipObject"
)

// peer returns the path of a program of the folder S3_PEERS, or skips the test.
func peer(t *testing.T, name string) string {
	t.Helper()
	dir := os.Getenv("S3_PEERS")
	if dir == "" {
		t.Skip("S3_PEERS names no folder that has " + name)
	}
	file := filepath.Join(dir, name)
	labtest.Must(os.Stat(file))(t)
	return file
}

// startElbencho starts elbencho's server with a bucket, and returns its URL and the folder of its buckets.
// Its address is that of this side's packets, too: it knows devices by addresses.
func startElbencho(t *testing.T, device string) (url, dir string) {
	t.Helper()
	const port = 17172
	addr, dir := labtest.AddrOf(device), t.TempDir()
	start(t, []string{peer(t, "s3rdma-server"), "--dir", dir, "--addr", addr, "--port", strconv.Itoa(port), "--rdma-addr", addr, "--no-cuobj", "--verbose"}).ListensTCP(port)
	labtest.Check(t, os.Mkdir(filepath.Join(dir, "bucket"), 0o777))
	return fmt.Sprintf("http://%s:%d", addr, port), dir
}

// TestElbenchoHipobj puts and gets objects of elbencho's server by hipobj-rc-v2.
func TestElbenchoHipobj(t *testing.T) {
	each(t, elbenchoServer, "`hipobj.Client` puts and gets", func(t *testing.T, device string) {
		url, dir := startElbencho(t, device)
		hipobjCases(t, device, url, dir, http.StatusRequestedRangeNotSatisfiable, func(*http.Request) error { return nil })
	})
}

// TestElbenchoRC puts and gets objects of elbencho's server by its own protocol.
func TestElbenchoRC(t *testing.T) {
	each(t, elbenchoServer, "`s3rdma.Client` puts and gets, by RC", func(t *testing.T, device string) {
		url, dir := startElbencho(t, device)
		c := labtest.Made(s3rdma.NewClient(s3rdma.ClientOptions{Device: labtest.AddrOf(device), RC: true, Logger: logger(t)}))(t)
		web := http.Client{Transport: &s3rdma.Transport{Client: c}}
		do := func(t *testing.T, ctx context.Context, method, path, part string, body []byte, status int) []byte {
			t.Helper()
			r := labtest.Must(http.NewRequestWithContext(ctx, method, url+path, bytes.NewReader(body)))(t)
			if part != "" {
				r.Header.Set("Range", part)
			}
			resp := labtest.Must(web.Do(r))(t)
			defer resp.Body.Close()
			if resp.StatusCode != status {
				t.Fatalf("%s %s: %s, want %d", method, path, resp.Status, status)
			}
			return labtest.Must(io.ReadAll(resp.Body))(t)
		}
		for _, n := range sizes {
			s3test.Case(t, s3test.Size(n), func(t *testing.T) {
				want, path := labtest.RandomBytes(n, n), fmt.Sprintf("/bucket/%d", n)
				do(t, t.Context(), http.MethodPut, path, "", want, http.StatusOK)
				if got := labtest.Must(os.ReadFile(filepath.Join(dir, path)))(t); !bytes.Equal(got, want) {
					t.Errorf("the server's file has %d bytes that differ from the %d put", len(got), n)
				}
				if got := do(t, s3rdma.WithSize(t.Context(), int64(n)), http.MethodGet, path, "", nil, http.StatusOK); !bytes.Equal(got, want) {
					t.Errorf("GET has %d bytes that differ from the %d put", len(got), n)
				}
			})
		}
		s3test.Case(t, "range", func(t *testing.T) {
			got := do(t, t.Context(), http.MethodGet, "/bucket/4097", "bytes=3097-4096", nil, http.StatusPartialContent)
			if !bytes.Equal(got, labtest.RandomBytes(4097, 4097)[3097:]) {
				t.Errorf("%d bytes differ from the last 1000", len(got))
			}
		})
		s3test.Case(t, "missing key", func(t *testing.T) {
			do(t, t.Context(), http.MethodGet, "/bucket/none", "", nil, http.StatusNotFound)
		})
		if s, n := c.Stats(), uint64(len(sizes)); s.Puts != n || s.Gets != n+1 || slices.Max(slices.Collect(maps.Values(s.Fallbacks))) > 0 {
			t.Errorf("%+v, want %d puts and %d gets by RDMA", s, n, n+1)
		}
	})
}

// TestElbenchoClient lets elbencho's client put, get and compare objects.
func TestElbenchoClient(t *testing.T) {
	each(t, elbenchoClient, "puts and gets at `s3rdma.Server`, by RC", func(t *testing.T, device string) {
		file := peer(t, "s3rdma-client")
		server := labtest.Made(s3rdma.NewServer(s3rdma.ServerOptions{Device: labtest.OpenDevice(t, device), Logger: logger(t)}))(t)
		store := &s3test.Store{}
		url := serve(t, labtest.AddrOf(device), server.Handler(store))
		run := func(t *testing.T, args ...string) *labtest.Program {
			t.Helper()
			return start(t, append([]string{"env", "S3RDMA_RC_ENDPOINT=" + url, "S3RDMA_RC_ADDR=" + labtest.AddrOf(device), file, "--endpoint", url, "--bucket", "bucket"}, args...))
		}
		for _, n := range sizes {
			s3test.Case(t, s3test.Size(n), func(t *testing.T) {
				key := strconv.Itoa(n)
				run(t, "--mkbucket", "--put", "--get", "--verify", "--size", key, "--key", key).Wait()
				if got := store.Object("/bucket/" + key); !bytes.Equal(got, pattern(n)) {
					t.Errorf("the object has %d bytes, which are not the %d of the client's pattern", len(got), n)
				}
			})
		}
		s3test.Case(t, "range", func(t *testing.T) {
			run(t, "--get", "--verify", "--size", "1000", "--offset", "3097", "--key", "4097").Wait()
		})
		s3test.Case(t, "missing key", func(t *testing.T) { run(t, "--get", "--key", "none").Fails("HTTP 404") })
		if s, n := server.Stats(), uint64(len(sizes)); s.Puts != n || s.Gets != n+1 || s.Failed > 0 || len(s.Declined) > 0 {
			t.Errorf("%+v, want %d puts and %d gets", s, n, n+1)
		}
	})
}

// pattern returns the bytes of objects that elbencho's client puts.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte((i*7 + 13) % 251)
	}
	return b
}

// TestHipobjClient lets hipObject's test program put, get and compare objects. It has at most 4096 bytes.
func TestHipobjClient(t *testing.T) {
	each(t, hipobjClient, "puts and gets at `hipobj.Handler`", func(t *testing.T, device string) {
		file := peer(t, "hipobj-v2-data-client")
		dev := labtest.OpenDevice(t, device)
		server := labtest.Made(hipobj.NewServer(dev, hipobj.Options{}))(t)
		own := labtest.Must(dev.QueryGID(1, 0))(t)
		store := &s3test.Store{}
		at := labtest.Must(url.Parse(serve(t, labtest.AddrOf(device), &hipobj.Handler{
			Server: server, Store: store,
			User: func(r *http.Request, _ hipobj.Op, _ *url.URL) (string, error) {
				account, _, _ := strings.Cut(strings.TrimPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 Credential="), "/")
				return account, nil
			},
			// The program takes the device's first GID, which is of a link-local address.
			AllowPeer: func(_ *http.Request, gid verbs.GID) error {
				if gid != own.GID {
					return &hipobj.Error{Status: http.StatusForbidden, Text: fmt.Sprintf("GID %v, want %v", gid, own.GID)}
				}
				return nil
			},
		})))(t)
		run := func(t *testing.T, op, target string, n int) *labtest.Program {
			t.Helper()
			return start(t, program(device, file, at.Hostname(), at.Port(), op, target, strconv.Itoa(n)))
		}
		for _, n := range []int{8, 64, 4096} {
			s3test.Case(t, s3test.Size(n), func(t *testing.T) {
				key := "/bucket/" + strconv.Itoa(n)
				run(t, "PUT", key, n).Wait()
				want := append([]byte("dp-put-payload"), make([]byte, 4096)...)[:n]
				if got := store.Object(key); !bytes.Equal(got, want) {
					t.Errorf("the object is %.40q, of %d bytes, want %.40q, of %d", got, len(got), want, n)
				}
				run(t, "GET", key, n).Wait()
			})
		}
		s3test.Case(t, "more than the object", func(t *testing.T) { run(t, "GET", "/bucket/64", 65).Fails("status=416") })
		s3test.Case(t, "missing key", func(t *testing.T) { run(t, "GET", "/bucket/none", 64).Fails("status=404") })
	})
}
