package main

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/goverbs/verbs/internal/labtest/tool"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func all(string) bool { return true }

// TestGolden generates from small headers that contain every construct.
func TestGolden(t *testing.T) {
	tool.Path(t, "clang")
	h, err := parseHeaders(context.Background(), "testdata", []string{"rdma/sample.h"})
	if err != nil {
		t.Fatal(err)
	}
	files, err := generate(h, "sample", all)
	if err != nil {
		t.Fatal(err)
	}
	again, err := generate(h, "sample", all)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if diff := cmp.Diff(string(text), string(again[name])); diff != "" {
			t.Errorf("%s differs when generated again:\n%s", name, diff)
		}
		golden := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.WriteFile(golden, text, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(text)); diff != "" {
			t.Errorf("%s differs from its golden file:\n%s", name, diff)
		}
	}
}

func TestBitfieldRefused(t *testing.T) {
	tool.Path(t, "clang")
	h, err := parseHeaders(context.Background(), "testdata", []string{"rdma/bitfield.h"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := generate(h, "sample", all); err == nil || !strings.Contains(err.Error(), "bitfield") {
		t.Errorf("generate: %v", err)
	}
}

func TestBrokenHeader(t *testing.T) {
	tool.Path(t, "clang")
	_, err := parseHeaders(context.Background(), "testdata", []string{"rdma/broken.h"})
	if err == nil || !strings.Contains(err.Error(), "error:") {
		t.Errorf("parse: %v", err)
	}
}

// TestCompatible compares layouts, as when the pinned version is gone.
func TestCompatible(t *testing.T) {
	const old = "# banner\nsizeof struct a = 8\noffsetof struct a x = 0 size 4\noffsetof struct a y = 4 size 4\nconst A = 1\n"
	for _, c := range []struct{ name, new, want string }{
		{"same", old, ""},
		{"grown", strings.Replace(old, "a = 8", "a = 16", 1) + "offsetof struct a z = 8 size 8\nconst B = 2\n", ""},
		{"removed member", strings.Replace(old, "offsetof struct a y = 4 size 4\n", "", 1), "offsetof struct a y: removed"},
		{"removed constant", strings.Replace(old, "const A = 1\n", "", 1), "const A: removed"},
		{"removed struct", "const A = 1\n", "sizeof struct a: removed"},
		{"moved member", strings.Replace(old, "y = 4 size", "y = 8 size", 1), "was 4 size 4, is 8 size 4"},
		{"resized member", strings.Replace(old, "y = 4 size 4", "y = 4 size 8", 1), "was 4 size 4, is 4 size 8"},
		{"changed constant", strings.Replace(old, "A = 1", "A = 2", 1), "const A: was 1, is 2"},
	} {
		err := checkCompatible(old, c.new)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// TestCompare checks that every kind of difference is reported.
func TestCompare(t *testing.T) {
	dir := t.TempDir()
	files := map[string][]byte{"zabi_a.go": []byte("a"), "zabi_b.go": []byte("b")}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("zabi_a.go", "a")
	if err := checkFiles(dir, files); err == nil || !strings.Contains(err.Error(), "zabi_b.go") {
		t.Errorf("missing file: %v", err)
	}
	write("zabi_b.go", "x")
	if err := checkFiles(dir, files); err == nil || !strings.Contains(err.Error(), "zabi_b.go differs") {
		t.Errorf("different file: %v", err)
	}
	write("zabi_b.go", "b")
	if err := checkFiles(dir, files); err != nil {
		t.Error(err)
	}
	write("zabi_c.go", "c")
	if err := checkFiles(dir, files); err == nil || !strings.Contains(err.Error(), "zabi_c.go is not generated") {
		t.Errorf("extra file: %v", err)
	}
}
