// Package tool finds the programs that tests run. It imports nothing of this module, so that tests
// within any package can use it.
package tool

import (
	"os/exec"
	"testing"
)

// Path returns the path of a program, and skips the test if it is not installed. make test installs all
// programs but tshark, groff and systemd.
func Path(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%v: run make deps-test, or apt-get install %[2]s", err, name)
	}
	return path
}
