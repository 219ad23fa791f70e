//go:build linux

package labtest

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// Built returns the path of one of this project's programs, which make build has built, or
// make bench-c if its name begins with c/, for the packages in tests. Outside of the lab it skips
// the test if the program is missing.
func Built(t testing.TB, name string) string {
	t.Helper()
	root := ".." // below a folder of tests
	for ; !exists(root+"/go.work") && len(root) < 12; root += "/.." {
	}
	dir := root + "/build/"
	if runtime.GOARCH != "amd64" { // an architecture that the lab emulates
		dir += runtime.GOARCH + "/"
	}
	path := Must(filepath.Abs(dir + name))(t)
	if _, err := os.Stat(path); err != nil {
		if Lab { // nothing may be missing there
			t.Fatalf("%v: run make build bench-c", err)
		}
		t.Skipf("%v: run make build bench-c", err)
	}
	return path
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
