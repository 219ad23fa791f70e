//go:build linux

package docs

import (
	"debug/elf"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var (
	goName   = regexp.MustCompile("`([a-z0-9]+)\\.([A-Z]\\w*(?:\\.\\w+)*)")
	testName = regexp.MustCompile("`([a-z0-9/]+)\\.((?:Test|Fuzz|Example)\\w*)`")
)

// TestNames checks that names of Go and of tests in the documents exist: `uverbs.QP.PostSend`,
// `cm.TestBacklog`.
func TestNames(t *testing.T) {
	pkgs := packages(t)
	tests := map[string]string{} // sources of tests, by folder
	checkTest := func(file, dir, name string) {
		if tests[dir] == "" {
			for _, source := range labtest.Must(filepath.Glob(filepath.Join(root, dir, "*_test.go")))(t) {
				tests[dir] += string(labtest.Must(os.ReadFile(source))(t))
			}
		}
		if !strings.Contains(tests[dir], "\nfunc "+name+"(") {
			t.Errorf("%s: there is no %s in %s", file, name, dir)
		}
	}
	files(t, ".md", func(file, text string) {
		for _, m := range testName.FindAllStringSubmatch(text, -1) {
			dir := m[1]
			if dir == "verbs" {
				dir = "."
			}
			checkTest(file, dir, m[2])
		}
		for _, m := range goName.FindAllStringSubmatch(text, -1) {
			if pkg := pkgs[m[1]]; pkg != nil && !testName.MatchString(m[0]+"`") && !exists(pkg, m[2]) {
				t.Errorf("%s: there is no %s.%s", file, m[1], m[2])
			}
		}
	})
}

// exists reports whether a package has a name, such as QP.PostSend.
func exists(pkg *types.Package, name string) bool {
	first, rest, _ := strings.Cut(name, ".")
	obj := pkg.Scope().Lookup(first)
	for obj != nil && rest != "" {
		first, rest, _ = strings.Cut(rest, ".")
		obj, _, _ = types.LookupFieldOrMethod(obj.Type(), true, pkg, first)
	}
	return obj != nil
}

var staticInline = regexp.MustCompile(`static inline\s[^;{}()]*?\b((?:ibv|rdma)_\w+)\s*\(`)

// TestFunctionsOfC checks that the pages on C's libraries have a row for each function that a
// program can link or that the headers define.
func TestFunctionsOfC(t *testing.T) {
	for _, page := range []struct{ file, library, version, functions, headers string }{
		{"verbs.md", "libibverbs", "IBVERBS_1.", "^ibv_", "infiniband/verbs.h"},
		{"cm.md", "librdmacm", "RDMACM_1.", "^(rdma_|r[a-ce-z])", "rdma/rdma_[cv]*.h"},
	} {
		t.Run(page.library, func(t *testing.T) {
			text := read(t, "docs/"+page.file)
			libraries := labtest.Must(filepath.Glob("/usr/lib/*-linux-gnu/" + page.library + ".so.1"))(t)
			headers := labtest.Must(filepath.Glob("/usr/include/" + page.headers))(t)
			if len(libraries) == 0 || len(headers) == 0 {
				t.Skipf("needs %s: apt-get install %[1]s-dev", page.library)
			}
			var functions []string
			f := labtest.Must(elf.Open(libraries[0]))(t)
			defer f.Close()
			for _, s := range labtest.Must(f.DynamicSymbols())(t) {
				// Hidden versions are for programs that were linked long ago.
				if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC && strings.HasPrefix(s.Version, page.version) && !s.VersionIndex.IsHidden() {
					functions = append(functions, s.Name)
				}
			}
			for _, header := range headers {
				for _, m := range staticInline.FindAllSubmatch(labtest.Must(os.ReadFile(header))(t), -1) {
					functions = append(functions, string(m[1]))
				}
			}
			rows := 0
			for _, name := range functions {
				if !regexp.MustCompile(page.functions).MatchString(name) {
					continue
				}
				if rows++; !strings.Contains(text, "\n| "+name+" |") {
					t.Errorf("%s has no row for %s", page.file, name)
				}
			}
			if rows < 60 {
				t.Errorf("only %d functions were found", rows)
			}
		})
	}
}
