package interop

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rsock"
)

// preload makes programs for TCP use C's rsockets.
var preload = "LD_PRELOAD=" + labtest.LibDir + "/rsocket/librspreload.so"

// preloadIPv4 makes it take IPv4 only: rsockets of rdma-core after 44 hang when a datagram socket is closed,
// which curl does to probe for IPv6.
func preloadIPv4(t *testing.T) {
	t.Helper()
	if labtest.RDMACore(t) > 44 {
		labtest.Check(t, os.MkdirAll("/etc/rdma/rsocket", 0o755))
		labtest.Check(t, os.WriteFile("/etc/rdma/rsocket/preload_config", []byte("* INET * *\n"), 0o644))
	}
}

// TestPreloadHTTP fetches from a Go server with programs that do not know about RDMA.
func TestPreloadHTTP(t *testing.T) {
	labtest.RequireLong(t)
	labtest.Each(t, func(t *testing.T, device string) {
		file := noise(1, 3<<20+12345)
		l, port := rsListen(t, device, rsock.Options{})
		server := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			sum := sha256.New()
			if _, err := io.Copy(sum, r.Body); err != nil {
				t.Error(err)
			}
			if r.Method == http.MethodPost {
				fmt.Fprintf(w, "%x", sum.Sum(nil))
				return
			}
			http.ServeContent(w, r, "file", time.Time{}, bytes.NewReader(file))
		})}
		defer server.Close()
		go server.Serve(l)
		preloadIPv4(t)
		url := "http://" + net.JoinHostPort(labtest.AddrOf(device), port) + "/"
		in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
		labtest.Check(t, os.WriteFile(in, file, 0o644))
		for _, args := range labtest.Few(1, [][]string{
			{"curl", "-sS", "-o", out, url},
			{"curl", "-sS", "-o", out, url, "-o", out, url}, // on one connection
			{"wget", "-q", "-O", out, url},
		}) {
			t.Run(args[0]+strconv.Itoa(len(args)), func(t *testing.T) {
				os.Remove(out)
				start(t, "env", append([]string{preload, "timeout", "30"}, args...)...).Wait()
				if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, file) {
					t.Errorf("%v, fetched %d bytes of %d, or others", err, len(got), len(file))
				}
			})
		}
		t.Run("post", func(t *testing.T) {
			got := start(t, "env", preload, "timeout", "30", "curl", "-sS", "-H", "Expect:", "--data-binary", "@"+in, url).Wait()
			if want := fmt.Sprintf("%x", sha256.Sum256(file)); got != want {
				t.Errorf("posted what sums to %s, not %s", got, want)
			}
		})
	})
}
