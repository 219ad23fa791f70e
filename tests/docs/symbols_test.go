package docs

import (
	"go/ast"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// symbols is a set of exported names, such as "uverbs.QP.PostSend".
type symbols map[string]bool

// exported returns the exported names of packages of this module.
func exported(t *testing.T, packages ...string) symbols {
	t.Helper()
	names := symbols{}
	for _, dir := range packages {
		pkg := filepath.Base(dir)
		if dir == "." {
			pkg = "verbs"
		}
		_, declared := labtest.Declarations(t, filepath.Join("../..", dir))
		for name := range declared {
			if !slices.ContainsFunc(strings.Split(name, "."), func(part string) bool { return !ast.IsExported(part) }) {
				names[pkg+"."+name] = true
			}
		}
	}
	return names
}
