//go:build linux

package docs

import (
	"go/parser"
	"go/token"
	"path"
	"testing"
)

// unsafeIn are the packages that may import unsafe, with the reason.
var unsafeIn = map[string]string{
	"abi":                "generated: members of unions, and what lies behind a structure",
	"mmap":               "memory that is not Go's, seen as slices, words and slots",
	"provider":           "commands that the kernel reads where they lie, by their address",
	"providertest":       "memory that commands name by its address",
	"provider/rxe":       "elements of rxe's queues",
	"provider/siw":       "elements of siw's queues",
	"provider/erdma":     "requests and completions of erdma",
	"provider/mlx5":      "requests and completions of mlx5, and registers of the device",
	"internal/sys":       "sizes of what ioctl takes, and what its attributes point to",
	"internal/maps":      "addresses of mappings, in its test",
	"internal/host":      "addresses of mappings, which mmap(2) takes and returns",
	"internal/noescape":  "slices that the compiler takes to escape",
	"internal/engine":    "registered memory, and elements of queues",
	"lab/vfiouser":       "memory of a guest, which mmap(2) places inside of a reserved range",
	"soft/internal/uapi": "memory of the process that commands name by its address",
	"soft/internal/ucma": "the same, in its tests",
	"internal/udp":       "messages of sendmmsg(2) and recvmmsg(2)",
	"tests/scenarios":    "an ioctl of another device, which gives DMA buffers",
}

// comparison measures the cost of cgo.
const comparison = "tests/bench/native/cgo.go"

// TestUnsafe checks that only the listed packages import unsafe, and none C.
func TestUnsafe(t *testing.T) {
	found := map[string]bool{}
	files(t, ".go", func(name, text string) {
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		dir := path.Dir(name)
		for _, i := range file.Imports {
			switch i.Path.Value {
			case `"unsafe"`:
				found[dir] = true
				if unsafeIn[dir] == "" {
					t.Errorf("%s imports unsafe", name)
				}
			case `"C"`:
				if name != comparison {
					t.Errorf("%s imports C", name)
				}
			}
		}
	})
	for dir := range unsafeIn {
		if !found[dir] {
			t.Errorf("%s may import unsafe and does not", dir)
		}
	}
}
