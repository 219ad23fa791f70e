package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestS3 puts a file in parts and gets it again, by both SDKs.
func TestS3(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	each(t, func(t *testing.T, device, host string) {
		dir := t.TempDir()
		if !labtest.Soft && labtest.IWARP(t, device) {
			stdout, stderr, exit := run(t, "s3", "serve", "-d", device, host+":0", dir)
			refused(t, stdout, stderr, exit, regexp.MustCompile(`iWARP`))
			return
		}
		server, _, addr := startServer(t, "s3", "serve", "-d", device, host+":0", dir)
		want := labtest.RandomBytes(0, 20<<20+1)
		in, url := filepath.Join(dir, "in"), "http://"+addr
		labtest.Check(t, os.WriteFile(in, want, 0o600))
		for _, sdk := range []string{"aws", "minio"} {
			out := filepath.Join(dir, sdk)
			for _, args := range [][]string{{"put", "-d", device, "-sdk", sdk, url, "bucket/" + sdk, in}, {"get", "-d", device, "-sdk", sdk, url, "bucket/" + sdk, out}} {
				stdout, stderr, exit := run(t, "s3", args...)
				if want := "20971521 bytes by RDMA, in 3 requests; 0 requests by HTTP\n"; stdout != want || exit != 0 {
					t.Errorf("s3 %q: exit status %d, output\n%s%s", args, exit, stdout, stderr)
				}
			}
			if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s: got %d bytes that differ from the %d that were put, error %v", sdk, len(got), len(want), err)
			}
		}
		stdout, stderr, exit := run(t, "s3", "get", "-d", device, url, "bucket/nothing", filepath.Join(dir, "nothing"))
		if exit != 1 || stdout != "" || !regexp.MustCompile("NoSuchKey|NotFound|404").MatchString(stderr) {
			t.Errorf("get of nothing: exit status %d, output\n%s%s", exit, stdout, stderr)
		}
		labtest.Check(t, server.Process.Signal(os.Interrupt))
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}
