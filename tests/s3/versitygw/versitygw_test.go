//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/tests/s3/s3test"
	"github.com/goverbs/verbs/tests/s3/versitygw/sigv4"
	"github.com/goverbs/verbs/uverbs"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// TestVersitygw runs the gateway's own tests of what uses the two packages, builds vgwrdma, which is one
// static file, and has it serve a folder to a client with signatures.
func TestVersitygw(t *testing.T) {
	if labtest.Lab {
		t.Skip("TestDevices has what the lab needs")
	}
	labtest.RequireAll(t, "builds a large program of others, for minutes")
	dir := filepath.Join(t.TempDir(), "versitygw")
	labtest.Check(t, makeCopy(dir))
	labtest.Check(t, inCopy(dir, t.Output(), "build", "-o", "vgwrdma", "./cmd/vgwrdma"))
	program := filepath.Join(dir, "vgwrdma")
	f := labtest.Must(elf.Open(program))(t)
	labtest.Close(t, f)
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("vgwrdma is not static")
		}
	}
	s3test.Row(t, static, "`hipobj.Client` puts and gets", "soft", func(t *testing.T) {
		g := start(t, program, []string{"VERBS_SOFT=" + serverAddr}, "--rdma-rc-enable", "--rc-gid-hint", serverAddr)
		d := labtest.Made(soft.New(soft.Options{Addrs: []netip.Addr{netip.MustParseAddr(clientAddr)}}))(t)
		g.byRC(t, labtest.Made(uverbs.Open(d.Name()))(t))
	})
	s3test.Row(t, "versitygw 1.8.0's own tests", "use the two packages", "none", func(t *testing.T) {
		for _, pkg := range []string{"./rdma/...", "./internal/rdmamode", "./cumiddleware", "./cubackend", "./s3api"} {
			s3test.Case(t, path.Base(strings.TrimSuffix(pkg, "/...")), func(t *testing.T) { labtest.Check(t, inCopy(dir, t.Output(), "test", pkg)) })
		}
	})
}

// TestDevices has one gateway serve two devices at a time, by both protocols.
func TestDevices(t *testing.T) {
	labtest.RequireAdapter(t)
	program := labtest.Built(t, "judges/versitygw/vgwrdma")
	g := start(t, program, nil, "--rdma-rc-enable", "--rc-gid-hint", labtest.AddrOf(labtest.RXE),
		"--rdma-ip", labtest.AddrOf(labtest.MLX5), "--rdma-dc-key", "7", "--rdma-num-dcis", "2", "--rdma-retry-count", "1",
		"--pool-buf-size", "1048576", "--pool-buf-count", "2")
	s3test.Row(t, static, "`hipobj.Client` puts and gets", labtest.RXE, func(t *testing.T) { g.byRC(t, labtest.OpenDevice(t, labtest.RXE)) })
	s3test.Row(t, static, "`s3rdma.Client` puts and gets, by DC", labtest.MLX5, g.byDC)
}

// TestClients has clients of others, and the SDKs, put and get objects of the gateway by DC.
func TestClients(t *testing.T) {
	labtest.RequireAdapter(t)
	program := labtest.Built(t, "judges/versitygw/vgwrdma")
	on := func(addr string) gateway {
		return start(t, program, nil, "--rdma-ip", addr, "--pool-buf-size", "4194304", "--pool-buf-count", "8")
	}
	g := on(labtest.Addr6Of(labtest.MLX5)) // the clients take its GID
	// The C++ client does not sign.
	gateway := labtest.Must(url.Parse(g.url))(t)
	signer := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(gateway)
		if err := sign(r.Out); err != nil {
			t.Error(err)
		}
	}})
	defer signer.Close()
	target := s3test.Target{Name: overOurs, Device: labtest.MLX5, URL: g.url, Unsigned: signer.URL + "/bucket", Access: access, Secret: secret}
	s3test.DC(t, target, []int{1, 4097, 1 << 20, 20 << 20}, func(t *testing.T, command ...string) {
		labtest.Start(t, 5*time.Minute, command[0], command[1:]...).Wait()
	})
	s3test.Row(t, "aws-sdk-go-v2 and minio-go", "put and get at "+overOurs+" by `s3rdma.Client`, by DC", labtest.MLX5, func(t *testing.T) {
		g := on(labtest.AddrOf(labtest.MLX5))
		for _, sdk := range []string{"aws", "minio"} {
			s3test.Case(t, sdk, func(t *testing.T) {
				object := labtest.RandomBytes(5, 5<<20) // the gateway takes parts by HTTP only
				from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
				labtest.Check(t, os.WriteFile(from, object, 0o600))
				for _, args := range [][]string{{"put", from}, {"get", to}} {
					out := labtest.Start(t, 5*time.Minute, "env", "AWS_ACCESS_KEY_ID="+access, "AWS_SECRET_ACCESS_KEY="+secret, labtest.Built(t, "s3"),
						args[0], "-d", labtest.MLX5, "-sdk", sdk, g.url, "bucket/"+sdk, args[1]).Wait()
					if want := fmt.Sprintf("%d bytes by RDMA", len(object)); !strings.Contains(out, want) {
						t.Errorf("%s says %q, want %s", args[0], out, want)
					}
				}
				for _, name := range []string{filepath.Join(g.dir, "bucket", sdk), to} {
					if got := labtest.Must(os.ReadFile(name))(t); !bytes.Equal(got, object) {
						t.Errorf("%s has %d other bytes", name, len(got))
					}
				}
			})
		}
	})
}

// The gateway in the table.
const overOurs, static = "vgwrdma over this library", "vgwrdma of versitygw 1.8.0 over this library, one static file"

const access, secret = "root", "secretsecret"

var sign = sigv4.Signer(access, secret)

// Two devices in user space, of the gateway and of the client.
const serverAddr, clientAddr = "127.0.0.2", "127.0.0.3"

// byDC puts and gets objects by cuObject's protocol. Those that are longer than the gateway's buffers
// move in parts.
func (g gateway) byDC(t *testing.T) {
	client := func(key uint64) (*s3rdma.Client, *http.Client) {
		c := labtest.Must(s3rdma.NewClient(s3rdma.ClientOptions{Device: labtest.MLX5, DCKey: key}))(t)
		t.Cleanup(func() { labtest.Check(t, c.Close()) })
		return c, &http.Client{Transport: &s3rdma.Transport{Client: c, Sign: sign}}
	}
	do := func(c *http.Client, method, name string, body []byte, status int, header ...string) []byte {
		t.Helper()
		r := labtest.Must(http.NewRequestWithContext(t.Context(), method, g.url+"/bucket/"+name, bytes.NewReader(body)))(t)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp := labtest.Must(c.Do(r))(t)
		defer resp.Body.Close()
		got := labtest.Must(io.ReadAll(resp.Body))(t)
		if resp.StatusCode != status {
			t.Errorf("%s %s: %s: %.500q", method, name, resp.Status, got)
		}
		return got
	}
	c, web := client(7)
	long := labtest.RandomBytes(3, 3<<20+1)
	for _, n := range []int{1, 4097, len(long)} {
		s3test.Case(t, s3test.Size(n), func(t *testing.T) {
			do(web, "PUT", "by DC", long[:n], http.StatusOK)
			if got := labtest.Must(os.ReadFile(filepath.Join(g.dir, "bucket", "by DC")))(t); !bytes.Equal(got, long[:n]) {
				t.Errorf("the gateway has stored %d other bytes", len(got))
			}
			if got := do(web, "GET", "by DC", nil, http.StatusOK); !bytes.Equal(got, long[:n]) {
				t.Errorf("GET has %d other bytes", len(got))
			}
		})
	}
	s3test.Case(t, "range", func(t *testing.T) {
		if got := do(web, "GET", "by DC", nil, http.StatusPartialContent, "Range", "bytes=1000-2000999"); !bytes.Equal(got, long[1000:2001000]) {
			t.Errorf("a range has %d other bytes", len(got))
		}
	})
	s3test.Case(t, "missing key", func(t *testing.T) { do(web, "GET", "nothing", nil, http.StatusNotFound) })
	s3test.Case(t, "wrong checksum", func(t *testing.T) {
		do(web, "PUT", "by DC", []byte("other bytes"), http.StatusBadRequest, "X-Amz-Checksum-Crc32c", "AAAAAA==")
	})
	if st := c.Stats(); st.Puts != 3 || st.Gets != 4 || st.PutBytes != uint64(1+4097+len(long)) || st.Fallbacks["failed"]+st.Fallbacks["ignored"] != 1 {
		t.Errorf("%+v", st)
	}
	// The gateway cannot reach a target with another key. HTTP carries the object.
	s3test.Case(t, "another DC key", func(t *testing.T) {
		c, web := client(8)
		do(web, "PUT", "by DC", long[:5000], http.StatusOK)
		if got := do(web, "GET", "by DC", nil, http.StatusOK); !bytes.Equal(got, long[:5000]) {
			t.Errorf("GET has %d other bytes", len(got))
		}
		if st := c.Stats(); st.Puts+st.Gets != 0 || st.Fallbacks["failed"] != 2 {
			t.Errorf("%+v", st)
		}
	})
}

// byRC puts and gets objects by hipobj-rc-v2.
func (g gateway) byRC(t *testing.T, dev *uverbs.Context) {
	c := &hipobj.Client{URL: g.url, Sign: sign, PD: labtest.Made(dev.AllocPD())(t)}
	for _, n := range []int{1, 4097, 1 << 20} {
		s3test.Case(t, s3test.Size(n), func(t *testing.T) {
			want := labtest.RandomBytes(n, n)
			mr := labtest.Made(c.PD.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
			copy(mr.Bytes(), want)
			put := labtest.Must(c.Put(t.Context(), "/bucket/dir/o%201", hipobj.Memory{MR: mr}))(t)
			get := labtest.Must(http.NewRequest("GET", g.url+"/bucket/dir/o%201", nil))(t)
			labtest.Check(t, sign(get))
			resp := labtest.Must(http.DefaultClient.Do(get))(t)
			body := labtest.Must(io.ReadAll(resp.Body))(t)
			resp.Body.Close()
			if !bytes.Equal(body, want) || resp.Header.Get("ETag") != put.ETag {
				t.Errorf("HTTP has %d bytes, ETag %s of %s", len(body), resp.Header.Get("ETag"), put.ETag)
			}
			clear(mr.Bytes())
			got := labtest.Must(c.Get(t.Context(), "/bucket/dir/o%201", 0, hipobj.Memory{MR: mr}))(t)
			if !bytes.Equal(mr.Bytes(), want) || got.ETag != put.ETag {
				t.Errorf("GET differs, ETag %s of %s", got.ETag, put.ETag)
			}
		})
	}
	mr := labtest.Made(c.PD.AllocMR(100, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	s3test.Case(t, "range", func(t *testing.T) {
		if _, err := c.Get(t.Context(), "/bucket/dir/o%201", 1000, hipobj.Memory{MR: mr}); err != nil || !bytes.Equal(mr.Bytes(), labtest.RandomBytes(1<<20, 1<<20)[1000:1100]) {
			t.Error(err)
		}
	})
	for _, test := range []struct {
		name, target string
		offset       int64
		status       int
		sign         func(*http.Request) error
	}{
		{"range beyond the end", "/bucket/dir/o%201", 1<<20 - 50, http.StatusBadRequest, sign},
		{"missing key", "/bucket/none", 0, http.StatusNotFound, sign},
		{"no signature", "/bucket/dir/o%201", 0, http.StatusForbidden, func(*http.Request) error { return nil }},
	} {
		s3test.Case(t, test.name, func(t *testing.T) {
			c.Sign = test.sign
			_, err := c.Get(t.Context(), test.target, test.offset, hipobj.Memory{MR: mr})
			if e, ok := errors.AsType[*hipobj.Error](err); !ok || e.Status != test.status {
				t.Errorf("%v, want %d", err, test.status)
			}
		})
	}
}

// gateway is vgwrdma, with a bucket. Its objects are files.
type gateway struct{ url, dir string }

// start starts the gateway. It stores metadata in files: not all file systems have extended attributes.
func start(t *testing.T, program string, env []string, args ...string) gateway {
	t.Helper()
	l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().(*net.TCPAddr)
	labtest.Check(t, l.Close())
	g := gateway{"http://" + addr.String(), t.TempDir()}
	all := slices.Concat(env, []string{program, "--access", access, "--secret", secret, "--port", addr.String(), "--quiet"},
		args, []string{"posix", "--sidecar", t.TempDir(), g.dir})
	labtest.Start(t, 10*time.Minute, "env", all...).ListensTCP(addr.Port)
	put := labtest.Must(http.NewRequest("PUT", g.url+"/bucket", nil))(t)
	labtest.Check(t, sign(put))
	resp := labtest.Must(http.DefaultClient.Do(put))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("create the bucket: %s", resp.Status)
	}
	return g
}
