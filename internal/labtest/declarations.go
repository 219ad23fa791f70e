//go:build linux

package labtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Declarations returns the tests, fuzz tests and examples of the package in a folder, and
// its names. Names of methods and fields are preceded by the name of their type.
func Declarations(t testing.TB, dir string) (tests, names map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no package in %s: %v", dir, err)
	}
	tests, names = map[string]bool{}, map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				name := prefix(d) + d.Name.Name
				if !strings.HasSuffix(file, "_test.go") {
					names[name] = true
				} else if isTest.MatchString(name) {
					tests[name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						names[s.Name.Name] = true
						if typ, ok := s.Type.(*ast.StructType); ok {
							for _, field := range typ.Fields.List {
								for _, n := range field.Names {
									names[s.Name.Name+"."+n.Name] = true
								}
							}
						}
					case *ast.ValueSpec:
						for _, n := range s.Names {
							names[n.Name] = true
						}
					}
				}
			}
		}
	}
	return tests, names
}

var isTest = regexp.MustCompile("^(Test|Fuzz|Example)")

// prefix returns the name of a method's type, with a dot.
func prefix(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return ""
	}
	typ := d.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	return typ.(*ast.Ident).Name + "."
}
