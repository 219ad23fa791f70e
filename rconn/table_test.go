package rconn

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestTable holds the table for libiwarp's users to what there is: the tests it
// names exist, and so do the functions.
func TestTable(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("reads the sources, which need not be here")
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	tests, names := map[string]bool{}, map[string]bool{}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if strings.HasSuffix(file, "_test.go") {
					tests[d.Name.Name] = true
				} else {
					names[prefix(d)+d.Name.Name] = true
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok {
						names[s.Name.Name] = true
					}
				}
			}
		}
	}
	src, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^//	(.{38}) +(.{33}) +((?:Test\w+(?:, )?)+)$`).FindAllStringSubmatch(string(src), -1)
	if len(rows) < 20 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, row := range rows {
		for _, test := range strings.Split(row[3], ", ") {
			if !tests[test] {
				t.Errorf("%s: no test %s", strings.TrimSpace(row[1]), test)
			}
		}
		for _, name := range regexp.MustCompile(`\b[A-Z]\w+(\.\w+)?`).FindAllString(row[2], -1) {
			if field := strings.TrimPrefix(name, "Options."); field != name {
				name = "Options"
			}
			if !names[name] {
				t.Errorf("%s: there is no %s", strings.TrimSpace(row[1]), name)
			}
		}
	}
}

// prefix is what a method's name begins with.
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
