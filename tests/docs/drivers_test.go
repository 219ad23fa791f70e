package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestDrivers checks that docs/drivers.md names all methods of package provider's interfaces,
// and that everything that it names exists.
func TestDrivers(t *testing.T) {
	text := labtest.Must(os.ReadFile("../../docs/drivers.md"))(t)
	known := exported(t, ".", "uverbs", "provider", "mmap", "abi")
	for _, m := range regexp.MustCompile("`((?:verbs|uverbs|provider|mmap)\\.[A-Z][\\w.]*)").FindAllStringSubmatch(string(text), -1) {
		if name := m[1]; !known[name] && !strings.Contains(name, ".Test") {
			t.Errorf("there is no %s", name)
		}
	}
	for _, m := range testName.FindAllStringSubmatch(string(text), -1) {
		if !testsOf(t, m[1])[m[2]] {
			t.Errorf("there is no %s in %s", m[2], m[1])
		}
	}
	for name := range methods(t, "../../provider") {
		if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), "."+name+"`") {
			t.Errorf("the page does not name %s", name)
		}
	}
}

// methods returns the names of the methods of a package's interfaces.
func methods(t *testing.T, dir string) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(dir + "/*.go")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		f := labtest.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			if typ, ok := n.(*ast.InterfaceType); ok {
				for _, m := range typ.Methods.List {
					for _, name := range m.Names {
						names[name.Name] = true
					}
				}
			}
			return true
		})
	}
	return names
}
