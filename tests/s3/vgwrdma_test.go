package s3

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestVgwrdma puts and gets objects of versitygw's gateway, whose objects are files.
func TestVgwrdma(t *testing.T) {
	each(t, "vgwrdma of versitygw 1.8.0, a server in C++", "`hipobj.Client` puts and gets", func(t *testing.T, device string) {
		const port = 17171
		dir := t.TempDir()
		// The gateway passes C a pointer to memory with pointers of Go, which the runtime refuses. The hint is
		// how the GID of an IPv4 address begins. Metadata is in files, as not all file systems of the lab have
		// extended attributes.
		args := []string{
			"GODEBUG=cgocheck=0", labtest.Built(t, "judges/vgwrdma"), "--access", access, "--secret", secret, "--port", fmt.Sprintf("127.0.0.1:%d", port),
			"--quiet", "--rdma-rc-enable", "--rc-gid-hint", "0:0:0:0", "posix", "--sidecar", t.TempDir(), dir,
		}
		start(t, program(device, "env", args...)).ListensTCP(port)
		url := fmt.Sprintf("http://127.0.0.1:%d", port)
		makeBucket(t, url, sign)
		hipobjCases(t, device, url, dir, http.StatusBadRequest, sign)
	})
}
