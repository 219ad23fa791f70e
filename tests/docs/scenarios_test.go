package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// scenarios returns the names in the lists of tests/scenarios.
func scenarios(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("../scenarios/*_test.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	names := map[string]bool{}
	for _, file := range files {
		f := labtest.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
		ast.Inspect(f, func(n ast.Node) bool {
			list, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			array, ok := list.Type.(*ast.ArrayType)
			if !ok {
				return true
			}
			if elem, ok := array.Elt.(*ast.Ident); !ok || elem.Name != "scenario" {
				return true
			}
			for _, e := range list.Elts {
				name, err := strconv.Unquote(e.(*ast.CompositeLit).Elts[0].(*ast.BasicLit).Value)
				if err != nil || names[name] {
					t.Errorf("%s: scenario %q: twice, or %v", file, name, err)
				}
				names[name] = true
			}
			return true
		})
	}
	return names
}

func TestScenarios(t *testing.T) {
	columns := []string{"name"}
	for _, k := range kernels {
		columns = append(columns, k+" rxe", k+" siw")
	}
	exist := scenarios(t)
	if len(exist) < 100 {
		t.Fatalf("only %d scenarios were found: %v", len(exist), slices.Sorted(maps.Keys(exist)))
	}
	for _, row := range table(t, "../../docs/scenarios.md", columns...) {
		if !exist[row[0]] {
			t.Errorf("%s: there is no such scenario, or it is listed twice", row[0])
		}
		delete(exist, row[0])
		if len(row) != len(columns) {
			t.Errorf("%s: %d cells", row[0], len(row))
		}
		for _, cell := range row[1:] {
			if _, errno := errnos[cell]; !errno && cell != "ok" && cell != "refused" {
				t.Errorf("%s: %q", row[0], cell)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(exist)) {
		t.Errorf("%s is not listed: run make tables", name)
	}
}
