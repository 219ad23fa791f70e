package docs

import (
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// oldest is the oldest release of rdma-core that the pages cover.
const oldest = 44

// linkable returns the functions that programs can link, with their versions:
// "1.10".
func (p page) linkable(t *testing.T, file string) map[string]string {
	t.Helper()
	f := labtest.Must(elf.Open(file))(t)
	defer f.Close()
	syms := labtest.Must(f.DynamicSymbols())(t)
	functions := map[string]string{}
	for _, s := range syms {
		version, public := strings.CutPrefix(s.Version, p.versions)
		switch {
		case s.Section == elf.SHN_UNDEF || elf.ST_TYPE(s.Info) != elf.STT_FUNC || strings.HasPrefix(s.Name, "_") || !strings.HasPrefix(s.Name, p.prefix):
		case s.VersionIndex.IsHidden(): // for binaries linked long ago
		case public && strings.HasPrefix(version, "1."):
			functions[s.Name] = version
		}
	}
	return functions
}

// minor returns the 10 of 1.10.
func minor(t *testing.T, version string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(version, "1."))
	if err != nil {
		t.Fatalf("version %q: %v", version, err)
	}
	return n
}

// installed returns the library on this machine and its release of rdma-core: 44 of
// libibverbs.so.1.14.44.0.
func (p page) installed(t *testing.T) (file string, release int) {
	t.Helper()
	links, err := filepath.Glob("/usr/lib/*-linux-gnu/" + p.library + ".so.1")
	if err != nil {
		t.Fatal(err)
	}
	if len(links) == 0 {
		t.Skipf("needs %s: apt-get install %[1]s1", p.library)
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

// TestLibraries compares the pages with the installed libraries, symbol by
// symbol.
func TestLibraries(t *testing.T) {
	for _, p := range pages {
		t.Run(p.library, p.compareSymbols)
	}
}

func (p page) compareSymbols(t *testing.T) {
	file, _ := p.installed(t)
	functions := p.linkable(t, file)
	if len(functions) < p.fewest {
		t.Fatalf("only %d functions in %s", len(functions), file)
	}
	newest := 0
	for _, version := range functions {
		newest = max(newest, minor(t, version))
	}
	rows := map[string]bool{}
	for _, f := range p.functions(t) {
		rows[f.name] = true
		version, exported := functions[f.name]
		switch linked := strings.HasPrefix(f.exported, "1."); {
		case exported && f.exported != version:
			t.Errorf("%s is %s, the page says %s", f.name, version, f.exported)
		case !exported && linked && minor(t, f.exported) <= newest:
			t.Errorf("%s is no symbol of %s", f.name, file)
		}
	}
	for name := range functions {
		if !rows[name] {
			t.Errorf("%s has no row", name)
		}
	}
}

var staticInline = regexp.MustCompile(`static inline\s[^;{}()]*?\b((?:ibv|rdma)_\w+)\s*\(`)

// TestHeaders compares the pages with the inline functions of the installed headers.
func TestHeaders(t *testing.T) {
	for _, p := range pages {
		t.Run(p.library, p.compareInline)
	}
}

func (p page) compareInline(t *testing.T) {
	_, installed := p.installed(t)
	inline := map[string]bool{}
	for _, header := range p.headers {
		text, err := os.ReadFile("/usr/include/" + header)
		if os.IsNotExist(err) {
			t.Skipf("needs <%s>: apt-get install %s-dev", header, p.library)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range staticInline.FindAllSubmatch(text, -1) {
			inline[string(m[1])] = true
		}
	}
	rows := map[string]bool{}
	for _, f := range p.functions(t) {
		since, is := strings.CutPrefix(f.exported, "inline")
		if !is {
			continue
		}
		rows[f.name] = true
		from := oldest
		if since != "" {
			var err error
			if from, err = strconv.Atoi(strings.TrimSpace(since)); err != nil {
				t.Errorf("%s: %v", f.name, err)
			}
		}
		if installed >= from && !inline[f.name] {
			t.Errorf("%s is not inline in %v", f.name, p.headers)
		}
	}
	for name := range inline {
		if !rows[name] {
			t.Errorf("%s has no row that says inline", name)
		}
	}
}
