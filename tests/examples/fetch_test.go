package examples

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestFetch fetches a file whose last READ is shorter than the others, and compares it.
func TestFetch(t *testing.T) {
	each(t, func(t *testing.T, _, host string) {
		want := make([]byte, 3<<20+1)
		rand.NewChaCha8([32]byte{}).Read(want)
		in, out := filepath.Join(t.TempDir(), "in"), filepath.Join(t.TempDir(), "out")
		labtest.Check(t, os.WriteFile(in, want, 0o600))
		server, _, addr := startServer(t, "fetch", "serve", host+":0", in)
		stdout, stderr, exit := run(t, "fetch", addr, out)
		if !regexp.MustCompile(fmt.Sprintf(`^%d bytes in \S+\n$`, len(want))).MatchString(stdout) || stderr != "" || exit != 0 {
			t.Errorf("the client: exit status %d, output\n%s%s", exit, stdout, stderr)
		}
		if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the client wrote %d bytes that differ from the file's %d, error %v", len(got), len(want), err)
		}
		labtest.Check(t, server.Process.Signal(os.Interrupt))
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}
