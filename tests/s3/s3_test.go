package s3

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/s3rdma/hipobj"
	"github.com/goverbs/verbs/tests/s3/s3test"
	"github.com/goverbs/verbs/uverbs"
)

func TestMain(m *testing.M) { labtest.Main(m) }

// The account of versitygw's programs.
const access, secret = "verbs", "secret-of-verbs"

// sizes are those of objects.
var sizes = []int{1, 4097, 1 << 20, 20 << 20}

// each runs a row of the table on each device of RoCE.
func each(t *testing.T, judge, way string, run func(t *testing.T, device string)) {
	t.Helper()
	labtest.RequireKernel(t)
	for _, device := range []string{labtest.RXE, labtest.MLX5} {
		s3test.Row(t, judge, way, device, func(t *testing.T) {
			if device == labtest.MLX5 {
				labtest.RequireAdapter(t)
			}
			run(t, device)
		})
	}
}

// program returns the command of a program of others, to which libibverbs shows one device alone: most
// take the first.
func program(device, file string, args ...string) []string {
	driver := map[string]string{labtest.RXE: "rxe", labtest.MLX5: "mlx5"}[device]
	const only = `mount -t tmpfs none /etc/libibverbs.d && echo "driver $1" >/etc/libibverbs.d/only.driver && shift && exec "$@"`
	return append([]string{"unshare", "-m", "sh", "-c", only, "sh", driver, file}, args...)
}

// start starts a program.
func start(t *testing.T, command []string) *labtest.Program {
	t.Helper()
	return labtest.Start(t, 5*time.Minute, command[0], command[1:]...)
}

// serve serves HTTP at an address until the test ends, and returns the URL.
func serve(t *testing.T, addr string, h http.Handler) string {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Listener.Close()
	s.Listener = labtest.Must(net.Listen("tcp", net.JoinHostPort(addr, "0")))(t)
	s.Start()
	t.Cleanup(s.Close)
	return s.URL
}

func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// gid returns the device's GID of its IPv4 address.
func gid(t *testing.T, dev *uverbs.Context) verbs.GIDEntry {
	t.Helper()
	return labtest.Must(dev.FindGID(1, netip.MustParseAddr(labtest.AddrOf(dev.Device().Name))))(t)
}

// hipobjCases puts and gets objects of a server of hipobj-rc-v2 whose buckets are folders of dir. It
// refuses a range beyond the end of an object with the status beyond.
func hipobjCases(t *testing.T, device, url, dir string, beyond int, sign func(*http.Request) error) {
	dev := labtest.OpenDevice(t, device)
	c := hipobj.Client{
		URL: url, Sign: sign, PD: labtest.Made(dev.AllocPD())(t), GID: gid(t, dev),
		WriteDelay: 100 * time.Millisecond, // both servers connect in READY
	}
	memory := func(t *testing.T, n int) *uverbs.MR {
		t.Helper()
		return labtest.Made(c.PD.AllocMR(n, verbs.AccessLocalWrite|verbs.AccessRemoteWrite, uverbs.MROptions{}))(t)
	}
	most := labtest.Must(dev.QueryPort(1))(t).MaxMessage // of a transfer, which is a message: 8 MiB on 6.1's rxe
	for _, n := range sizes {
		n = min(n, int(most))
		s3test.Case(t, s3test.Size(n), func(t *testing.T) {
			key := fmt.Sprintf("bucket/%d", n)
			src, dst := memory(t, n), memory(t, n)
			copy(src.Bytes(), labtest.RandomBytes(n, n))
			labtest.Must(c.Put(t.Context(), "/"+key, hipobj.Memory{MR: src}))(t)
			if got := labtest.Must(os.ReadFile(filepath.Join(dir, key)))(t); !bytes.Equal(got, src.Bytes()) {
				t.Errorf("the server's file has %d bytes that differ from the %d put", len(got), n)
			}
			labtest.Must(c.Get(t.Context(), "/"+key, 0, hipobj.Memory{MR: dst}))(t)
			if !bytes.Equal(dst.Bytes(), src.Bytes()) {
				t.Error("what GET has written differs from what was put")
			}
		})
	}
	const object = "/bucket/4097"
	s3test.Case(t, "range", func(t *testing.T) {
		dst := memory(t, 1000)
		labtest.Must(c.Get(t.Context(), object, 3097, hipobj.Memory{MR: dst}))(t)
		if !bytes.Equal(dst.Bytes(), labtest.RandomBytes(4097, 4097)[3097:]) {
			t.Error("the last 1000 bytes differ")
		}
	})
	for _, bad := range []struct {
		name, target string
		offset       int64
		status       int
	}{{"range beyond the end", object, 4000, beyond}, {"missing key", "/bucket/none", 0, http.StatusNotFound}} {
		s3test.Case(t, bad.name, func(t *testing.T) {
			_, err := c.Get(t.Context(), bad.target, bad.offset, hipobj.Memory{MR: memory(t, 100)})
			if e, ok := errors.AsType[*hipobj.Error](err); !ok || e.Status != bad.status {
				t.Errorf("%v, want status %d", err, bad.status)
			}
		})
	}
}

// sign signs a request without a body for S3 (AWS4-HMAC-SHA256), with all its X-Amz- headers.
func sign(r *http.Request) error {
	hash := func(s string) string {
		h := sha256.Sum256([]byte(s))
		return hex.EncodeToString(h[:])
	}
	now, payload := time.Now().UTC().Format("20060102T150405Z"), hash("")
	r.Header.Set("X-Amz-Date", now)
	r.Header.Set("X-Amz-Content-Sha256", payload)
	lines, names := []string{"host:" + r.URL.Host}, []string{"host"}
	for name := range r.Header {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-amz-") {
			lines, names = append(lines, name+":"+r.Header.Get(name)), append(names, name)
		}
	}
	slices.Sort(lines)
	slices.Sort(names)
	signed := strings.Join(names, ";")
	request := strings.Join([]string{r.Method, r.URL.EscapedPath(), r.URL.RawQuery, strings.Join(lines, "\n") + "\n", signed, payload}, "\n")
	scope := now[:8] + "/us-east-1/s3/aws4_request"
	key := []byte("AWS4" + secret)
	for _, part := range append(strings.Split(scope, "/"), "AWS4-HMAC-SHA256\n"+now+"\n"+scope+"\n"+hash(request)) {
		h := hmac.New(sha256.New, key)
		h.Write([]byte(part))
		key = h.Sum(nil)
	}
	r.Header.Set("Authorization", fmt.Sprintf("AWS4-HMAC-SHA256 Credential=%s/%s,SignedHeaders=%s,Signature=%x", access, scope, signed, key))
	return nil
}

// makeBucket makes a bucket of a server.
func makeBucket(t *testing.T, url string, sign func(*http.Request) error) {
	t.Helper()
	r := labtest.Must(http.NewRequestWithContext(context.Background(), http.MethodPut, url+"/bucket", nil))(t)
	labtest.Check(t, sign(r))
	resp := labtest.Must(http.DefaultClient.Do(r))(t)
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("PUT %s: %s", r.URL, resp.Status)
	}
}
