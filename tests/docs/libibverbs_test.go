package docs

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const (
	header = "/usr/include/infiniband/verbs.h"
	oldest = 44 // release of rdma-core that the page starts from
)

// libraryFunctions are the functions that programs can link, with their
// versions: "1.10".
func libraryFunctions(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	functions := map[string]string{}
	for _, s := range syms {
		version, public := strings.CutPrefix(s.Version, "IBVERBS_")
		switch {
		case s.Section == elf.SHN_UNDEF || elf.ST_TYPE(s.Info) != elf.STT_FUNC || strings.HasPrefix(s.Name, "_"):
		case s.VersionIndex.IsHidden(): // for binaries linked long ago
		case public && strings.HasPrefix(version, "1."):
			functions[s.Name] = version
		}
	}
	return functions
}

// minor is the 10 of 1.10.
func minor(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(version, "1."))
	if err != nil {
		t.Fatalf("version %q: %v", version, err)
	}
	return n
}

// library is the installed libibverbs and its release of rdma-core: 44 of
// libibverbs.so.1.14.44.0.
func library(t *testing.T) (file string, release int) {
	t.Helper()
	links, err := filepath.Glob("/usr/lib/*-linux-gnu/libibverbs.so.1")
	if err != nil {
		t.Fatal(err)
	}
	if len(links) == 0 {
		t.Skip("needs libibverbs: apt-get install libibverbs1")
	}
	if file, err = filepath.EvalSymlinks(links[0]); err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(file, ".")
	if release, err = strconv.Atoi(parts[len(parts)-2]); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return file, release
}

// TestLibrary compares the page with the installed library, symbol by symbol.
func TestLibrary(t *testing.T) {
	file, _ := library(t)
	functions := libraryFunctions(t, file)
	if len(functions) < 70 {
		t.Fatalf("only %d functions in %s", len(functions), file)
	}
	newest := 0
	for _, version := range functions {
		newest = max(newest, minor(t, version))
	}
	rows := map[string]bool{}
	for _, v := range verbs(t) {
		rows[v.function] = true
		version, exported := functions[v.function]
		switch linked := strings.HasPrefix(v.exported, "1."); {
		case exported && v.exported != version:
			t.Errorf("%s is %s, the page says %s", v.function, version, v.exported)
		case !exported && linked && minor(t, v.exported) <= newest:
			t.Errorf("%s is no symbol of %s", v.function, file)
		}
	}
	for name := range functions {
		if !rows[name] {
			t.Errorf("%s has no row", name)
		}
	}
}

var staticInline = regexp.MustCompile(`static inline\s[^;{}()]*?\b(ibv_\w+)\s*\(`)

// TestHeader compares the page with the functions that live in the installed
// header.
func TestHeader(t *testing.T) {
	text, err := os.ReadFile(header)
	if os.IsNotExist(err) {
		t.Skip("needs <infiniband/verbs.h>: apt-get install libibverbs-dev")
	}
	if err != nil {
		t.Fatal(err)
	}
	_, installed := library(t)
	inline := map[string]bool{}
	for _, m := range staticInline.FindAllSubmatch(text, -1) {
		inline[string(m[1])] = true
	}
	rows := map[string]bool{}
	for _, v := range verbs(t) {
		since, is := strings.CutPrefix(v.exported, "inline")
		if !is {
			continue
		}
		rows[v.function] = true
		from := oldest
		if since != "" {
			if from, err = strconv.Atoi(strings.TrimSpace(since)); err != nil {
				t.Errorf("%s: %v", v.function, err)
			}
		}
		if installed >= from && !inline[v.function] {
			t.Errorf("%s is not inline in %s", v.function, header)
		}
	}
	for name := range inline {
		if !rows[name] {
			t.Errorf("%s has no row that says inline", name)
		}
	}
}
