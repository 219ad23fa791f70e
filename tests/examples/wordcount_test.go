package examples

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestWordcount counts files over RDMA, and over TCP on loopback, which needs no device.
func TestWordcount(t *testing.T) {
	dir := t.TempDir()
	long, empty := filepath.Join(dir, "long"), filepath.Join(dir, "empty")
	text := strings.Repeat("three words, here\n", 50_000) + "and a last line"
	for name, data := range map[string]string{long: text, empty: ""} {
		labtest.Check(t, os.WriteFile(name, []byte(data), 0o600))
	}
	counts := func(t *testing.T, host, by string) {
		_, _, addr := startServer(t, "wordcount", "serve", host+":0")
		want := fmt.Sprintf("50000 150004 %d %s by %s\n0 0 0 %s by %s\n", len(text), long, by, empty, by)
		if out, errs, exit := run(t, "wordcount", addr, long, empty); out != want || errs != "" || exit != 0 {
			t.Errorf("exit status %d, output\n%s%s", exit, out, errs)
		}
	}
	t.Run("loopback", func(t *testing.T) { counts(t, "127.0.0.1", "tcp") })
	each(t, func(t *testing.T, _, addr string) { counts(t, addr, "rdma") })
}
