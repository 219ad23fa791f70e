//go:build linux

package main

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestRooms checks that packages of the lab use those below them only: the guest, and what it
// agrees on with the host, none of the host.
func TestRooms(t *testing.T) {
	const module = "github.com/goverbs/verbs/lab/"
	for room, below := range map[string][]string{
		"job":     nil,
		"guest":   {"internal/job", "tsc"},
		"image":   {"internal/job", "debian"},
		"machine": {"internal/job", "internal/image", "connectx", "erdma", "debian", "tsc", "vfiouser"},
		"session": {"internal/job", "internal/image", "internal/machine", "debian"},
	} {
		files, err := filepath.Glob("../internal/" + room + "/*.go")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", room, err)
		}
		for _, file := range files {
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
			if err != nil {
				t.Fatal(err)
			}
			for _, spec := range f.Imports {
				path, _ := strconv.Unquote(spec.Path.Value)
				if name, ok := strings.CutPrefix(path, module); ok && !slices.Contains(below, name) {
					t.Errorf("%s imports %s", file, path)
				}
			}
		}
	}
}
