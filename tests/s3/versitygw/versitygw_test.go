//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/tests/s3/versitygw/sigv4"
	"github.com/goverbs/verbs/uverbs"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// TestVersitygw runs the gateway's own tests of what uses the two packages, builds vgwrdma, which is one
// static file, and has it serve a folder to a client with signatures.
func TestVersitygw(t *testing.T) {
	switch {
	case labtest.Lab:
		t.Skip("TestDevices has what the lab needs")
	case os.Getenv("TEST_ALL") == "" || testing.Short():
		t.Skip("builds a large program of others, for minutes: run by make test-all, or with TEST_ALL=1")
	}
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
	t.Run("serves", func(t *testing.T) {
		g := start(t, program, []string{"VERBS_SOFT=" + serverAddr}, "--rdma-rc-enable", "--rc-gid-hint", serverAddr)
		d := labtest.Made(soft.New(soft.Options{Addrs: []netip.Addr{netip.MustParseAddr(clientAddr)}}))(t)
		g.byRC(t, labtest.Made(uverbs.Open(d.Name()))(t))
	})
	labtest.Check(t, inCopy(dir, t.Output(), "test", "./rdma/...", "./internal/rdmamode", "./cumiddleware", "./cubackend", "./s3api"))
}

// TestDevices has one gateway serve two devices at a time, by both protocols.
func TestDevices(t *testing.T) {
	labtest.RequireAdapter(t)
	program := labtest.Must(filepath.Abs("../../../build/judges/versitygw/vgwrdma"))(t)
	g := start(t, program, nil, "--rdma-rc-enable", "--rc-gid-hint", labtest.AddrOf(labtest.RXE),
		"--rdma-ip", labtest.AddrOf(labtest.MLX5), "--rdma-dc-key", "7", "--rdma-num-dcis", "2", "--rdma-retry-count", "1",
		"--pool-buf-size", "1048576", "--pool-buf-count", "2")
	t.Run("RC", func(t *testing.T) { g.byRC(t, labtest.OpenDevice(t, labtest.RXE)) })
	t.Run("DC", g.byDC)
}

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
		r := labtest.Must(http.NewRequestWithContext(t.Context(), method, g.url+"/bkt/"+name, bytes.NewReader(body)))(t)
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
		do(web, "PUT", "by DC", long[:n], http.StatusOK)
		if got := labtest.Must(os.ReadFile(filepath.Join(g.dir, "bkt", "by DC")))(t); !bytes.Equal(got, long[:n]) {
			t.Errorf("%d bytes: the gateway has stored %d others", n, len(got))
		}
		if got := do(web, "GET", "by DC", nil, http.StatusOK); !bytes.Equal(got, long[:n]) {
			t.Errorf("%d bytes: GET has %d others", n, len(got))
		}
	}
	if got := do(web, "GET", "by DC", nil, http.StatusPartialContent, "Range", "bytes=1000-2000999"); !bytes.Equal(got, long[1000:2001000]) {
		t.Errorf("a range has %d other bytes", len(got))
	}
	do(web, "GET", "nothing", nil, http.StatusNotFound)
	do(web, "PUT", "by DC", []byte("other bytes"), http.StatusBadRequest, "X-Amz-Checksum-Crc32c", "AAAAAA==")
	if st := c.Stats(); st.Puts != 3 || st.Gets != 4 || st.PutBytes != uint64(1+4097+len(long)) || st.Fallbacks["failed"]+st.Fallbacks["ignored"] != 1 {
		t.Errorf("%+v", st)
	}
	// The gateway cannot reach a target with another key. HTTP carries the object.
	c, web = client(8)
	do(web, "PUT", "by DC", long[:5000], http.StatusOK)
	if got := do(web, "GET", "by DC", nil, http.StatusOK); !bytes.Equal(got, long[:5000]) {
		t.Errorf("with another key: GET has %d other bytes", len(got))
	}
	if st := c.Stats(); st.Puts+st.Gets != 0 || st.Fallbacks["failed"] != 2 {
		t.Errorf("with another key: %+v", st)
	}
}

// byRC puts and gets objects by hipobj-rc-v2.
func (g gateway) byRC(t *testing.T, dev *uverbs.Context) {
	url := g.url
	c := &hipobj.Client{URL: url, Sign: sign, PD: labtest.Made(dev.AllocPD())(t)}
	for _, n := range []int{1, 4097, 1 << 20} {
		want := labtest.RandomBytes(n, n)
		mr := labtest.Made(c.PD.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
		copy(mr.Bytes(), want)
		put := labtest.Must(c.Put(t.Context(), "/bkt/dir/o%201", hipobj.Memory{MR: mr}))(t)
		get := labtest.Must(http.NewRequest("GET", url+"/bkt/dir/o%201", nil))(t)
		labtest.Check(t, sign(get))
		resp := labtest.Must(http.DefaultClient.Do(get))(t)
		body := labtest.Must(io.ReadAll(resp.Body))(t)
		resp.Body.Close()
		if !bytes.Equal(body, want) || resp.Header.Get("ETag") != put.ETag {
			t.Errorf("%d bytes: HTTP has %d, ETag %s of %s", n, len(body), resp.Header.Get("ETag"), put.ETag)
		}
		clear(mr.Bytes())
		got := labtest.Must(c.Get(t.Context(), "/bkt/dir/o%201", 0, hipobj.Memory{MR: mr}))(t)
		if !bytes.Equal(mr.Bytes(), want) || got.ETag != put.ETag {
			t.Errorf("%d bytes: GET differs, ETag %s of %s", n, got.ETag, put.ETag)
		}
	}
	mr := labtest.Made(c.PD.AllocMR(100, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	if _, err := c.Get(t.Context(), "/bkt/dir/o%201", 1000, hipobj.Memory{MR: mr}); err != nil || !bytes.Equal(mr.Bytes(), labtest.RandomBytes(1<<20, 1<<20)[1000:1100]) {
		t.Errorf("a range: %v", err)
	}
	for name, test := range map[string]struct {
		target string
		offset int64
		status int
		sign   func(*http.Request) error
	}{
		"over the end": {"/bkt/dir/o%201", 1<<20 - 50, http.StatusBadRequest, sign},
		"no object":    {"/bkt/none", 0, http.StatusNotFound, sign},
		"no signature": {"/bkt/dir/o%201", 0, http.StatusForbidden, func(*http.Request) error { return nil }},
	} {
		c.Sign = test.sign
		_, err := c.Get(t.Context(), test.target, test.offset, hipobj.Memory{MR: mr})
		if e, ok := errors.AsType[*hipobj.Error](err); !ok || e.Status != test.status {
			t.Errorf("%s: %v, want %d", name, err, test.status)
		}
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
	put := labtest.Must(http.NewRequest("PUT", g.url+"/bkt", nil))(t)
	labtest.Check(t, sign(put))
	resp := labtest.Must(http.DefaultClient.Do(put))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("create the bucket: %s", resp.Status)
	}
	return g
}
