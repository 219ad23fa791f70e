package docs

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// unsafeIn are the packages that may import unsafe, with the reason.
var unsafeIn = map[string]string{
	"abi":             "generated: members of unions, and what lies behind a structure",
	"mmap":            "memory that is not Go's, seen as slices, words and slots",
	"provider":        "commands that the kernel reads where they lie, by their address",
	"provider/rxe":    "elements of rxe's queues",
	"provider/siw":    "elements of siw's queues",
	"internal/sys":    "sizes of what ioctl takes, and what its attributes point to",
	"tests/scenarios": "an ioctl of another device, which gives DMA buffers",
}

// comparison holds the programs that measure the cost of cgo.
const comparison = "tests/bench/cgo"

// TestUnsafe checks that only the listed packages import unsafe, and none C.
func TestUnsafe(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); base == "testdata" || base == "build" || strings.HasPrefix(base, ".") && base != ".." {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(name) != ".go" {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel("../..", name)
		if err != nil {
			return err
		}
		dir := path.Dir(filepath.ToSlash(rel))
		for _, i := range file.Imports {
			switch i.Path.Value {
			case `"unsafe"`:
				found[dir] = true
				if unsafeIn[dir] == "" {
					t.Errorf("%s imports unsafe", rel)
				}
			case `"C"`:
				if dir != comparison {
					t.Errorf("%s imports C", rel)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir := range unsafeIn {
		if !found[dir] {
			t.Errorf("%s may import unsafe and does not", dir)
		}
	}
}
