//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/lab/internal/image"
)

// TestListenAdapter replaces only a socket that nobody serves.
func TestListenAdapter(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nic")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := listenAdapter(path); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file has been replaced by %v: %v", l, err)
	}
	if b, err := os.ReadFile(path); string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
	os.Remove(path)
	l, err := listenAdapter(path)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := listenAdapter(path); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a socket in use has been replaced by %v: %v", again, err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	if l, err = listenAdapter(path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if image.Exist(path) {
		t.Error("the socket is left")
	}
}
