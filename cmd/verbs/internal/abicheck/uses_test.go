package abicheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// isType matches a generated comment with the C type of a Go type.
var isType = regexp.MustCompile(`is ((?:struct|union) \w+)`)

// generated returns, by the Go names of package abi's types, their C types and the
// names of the types inside them. A type without a name in C counts as the type that
// contains it.
func generated(t *testing.T) (c map[string]string, inside map[string][]string) {
	c, inside = map[string]string{}, map[string][]string{}
	files, err := filepath.Glob("../../abi/zabi_*.go")
	if err != nil || len(files) < 8 {
		t.Fatal(files, err)
	}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		mentions := func(in string, n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					inside[in] = append(inside[in], id.Name)
				}
				return true
			})
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						if m := isType.FindStringSubmatch(d.Doc.Text()); m != nil {
							c[s.Name.Name] = m[1]
						}
						mentions(s.Name.Name, s.Type)
					}
				}
			case *ast.FuncDecl: // a member of a union, or a flexible array
				if star, ok := d.Recv.List[0].Type.(*ast.StarExpr); ok && d.Type.Results != nil {
					mentions(star.X.(*ast.Ident).Name, d.Type.Results)
				}
			}
		}
	}
	return c, inside
}

// used returns the names of package abi that the project's programs use with the kernel. Package
// soft, which implements the kernel's side, has no other peer.
func used(t *testing.T) map[string]bool {
	names := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel("../..", path); {
		case err != nil:
			return err
		case d.IsDir():
			if slices.Contains([]string{".git", "abi", "gen", "tests", "build", "testdata", "soft"}, rel) {
				return fs.SkipDir
			}
			return nil
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				if x, ok := s.X.(*ast.Ident); ok && x.Name == "abi" {
					names[s.Sel.Name] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestUses checks that the table of uses has exactly the types that the code uses and
// the types inside them.
func TestUses(t *testing.T) {
	c, inside := generated(t)
	want := map[string]bool{}
	var add func(name string)
	seen := map[string]bool{}
	add = func(name string) {
		if seen[name] || c[name] == "" {
			return
		}
		seen[name] = true
		want[c[name]] = true
		for _, n := range inside[name] {
			add(n)
		}
	}
	for name := range used(t) {
		add(name)
	}
	if len(want) < 80 {
		t.Errorf("only %d types are used", len(want))
	}
	have := map[string]bool{}
	for _, u := range uses {
		for _, name := range u.names() {
			if have[name] {
				t.Errorf("%s is there twice", name)
			}
			have[name] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if !have[name] {
			t.Errorf("%s is used, and not in the table", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if !want[name] {
			t.Errorf("%s is in the table, and not used", name)
		}
	}
	types := map[string]bool{}
	for _, typ := range Types() {
		types[typ.String()] = true
	}
	for name := range want {
		if !types[name] {
			t.Errorf("%s has no layout", name)
		}
	}
	if _, err := os.Stat("../../go.mod"); err != nil {
		t.Error(err)
	}
}
