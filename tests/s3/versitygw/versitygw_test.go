//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/soft"
	"github.com/goverbs/verbs/uverbs"
)

// TestVersitygw runs the gateway's own tests of what uses package rcserver, builds vgwrdma, which
// is one static file, and has it serve a folder to a client with signatures.
func TestVersitygw(t *testing.T) {
	if os.Getenv("TEST_ALL") == "" || testing.Short() {
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
	t.Run("serves", func(t *testing.T) { serves(t, program) })
	labtest.Check(t, inCopy(dir, t.Output(), "test", "./rdma/...", "./internal/rdmamode", "./cumiddleware", "./s3api"))
}

const access, secret, region = "root", "secretsecret", "us-east-1"

// Two devices in user space, of the gateway and of the client.
const serverAddr, clientAddr = "127.0.0.2", "127.0.0.3"

func serves(t *testing.T, program string) {
	url := "http://" + start(t, program)
	put := labtest.Must(http.NewRequest("PUT", url+"/bkt", nil))(t)
	labtest.Check(t, sign(put))
	if resp := labtest.Must(http.DefaultClient.Do(put))(t); resp.StatusCode != http.StatusOK {
		t.Fatalf("create the bucket: %s", resp.Status)
	}
	d := labtest.Made(soft.New(soft.Options{Addrs: []netip.Addr{netip.MustParseAddr(clientAddr)}}))(t)
	dev := labtest.Made(uverbs.Open(d.Name()))(t)
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

// start starts the gateway, and returns its address.
func start(t *testing.T, program string) string {
	t.Helper()
	l := labtest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	addr := l.Addr().String()
	labtest.Check(t, l.Close())
	cmd := exec.Command(program, "--access", access, "--secret", secret, "--region", region, "--port", addr, "--rdma-rc-enable", "--rc-gid-hint", serverAddr, "posix", t.TempDir())
	cmd.Env = append(os.Environ(), "VERBS_SOFT="+serverAddr)
	cmd.Stdout, cmd.Stderr = t.Output(), t.Output()
	labtest.Check(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
	})
	labtest.Until(t, "vgwrdma listens", func() bool {
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("vgwrdma has ended: %v", err)
		default:
		}
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(context.Background(), "tcp", addr)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
	return addr
}

// sign signs a request without a body (AWS Signature Version 4).
func sign(r *http.Request) error {
	now := time.Now().UTC()
	empty := sha256.Sum256(nil)
	sum := hex.EncodeToString(empty[:])
	r.Header.Set("X-Amz-Date", now.Format("20060102T150405Z"))
	r.Header.Set("X-Amz-Content-Sha256", sum)
	lines := []string{"host:" + r.URL.Host}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") {
			lines = append(lines, name+":"+r.Header.Get(name))
		}
	}
	slices.Sort(lines)
	var names []string
	for _, l := range lines {
		name, _, _ := strings.Cut(l, ":")
		names = append(names, name)
	}
	signed := strings.Join(names, ";")
	canonical := sha256.Sum256([]byte(strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, strings.Join(lines, "\n") + "\n", signed, sum}, "\n")))
	scope := now.Format("20060102") + "/" + region + "/s3/aws4_request"
	key := []byte("AWS4" + secret)
	for _, part := range append(strings.Split(scope, "/"), fmt.Sprintf("AWS4-HMAC-SHA256\n%s\n%s\n%x", now.Format("20060102T150405Z"), scope, canonical)) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s, SignedHeaders=%s, Signature=%x", access, scope, signed, key))
	return nil
}
