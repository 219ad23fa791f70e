package examples

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestS3 puts a file by RDMA and gets it again, and measures.
func TestS3(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		server, _, addr := startServer(t, "s3", "serve", host+":0")
		want := labtest.RandomBytes(0, 3<<20+1)
		in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
		labtest.Check(t, os.WriteFile(in, want, 0o600))
		for _, args := range [][]string{{"put", "http://" + addr, "bucket/key", in}, {"get", "http://" + addr, "bucket/key", out}} {
			if stdout, stderr, exit := run(t, "s3", args...); stdout != "3145729 bytes by rdma\n" || stderr != "" || exit != 0 {
				t.Errorf("s3 %q: exit status %d, output\n%s%s", args, exit, stdout, stderr)
			}
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("got %d bytes that differ from the %d that were put, error %v", len(got), len(want), err)
		}
		stdout, stderr, exit := run(t, "s3", "get", "http://"+addr, "bucket/nothing", out)
		refused(t, stdout, stderr, exit, regexp.MustCompile(`^HEAD bucket/nothing: 404 Not Found\n$`))
		table := regexp.MustCompile(`^ .*\n +rdma +PUT .*\n +rdma +GET .*\n +http +PUT .*\n +http +GET .*\n$`)
		if stdout, stderr, exit = run(t, "s3", "bench", "-clients", "2", "-for", "100ms", "http://"+addr); !table.MatchString(stdout) || stderr != "" || exit != 0 {
			t.Errorf("s3 bench: exit status %d, output\n%s%s", exit, stdout, stderr)
		}
		labtest.Check(t, server.Process.Signal(os.Interrupt))
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}
