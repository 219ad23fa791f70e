package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// symbols are the exported names of packages, as "uverbs.QP.PostSend".
type symbols map[string]bool

// exported reads the sources of this module's packages.
func exported(t *testing.T, packages ...string) symbols {
	t.Helper()
	names := symbols{}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("package %s: %v, %v", pkg, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f := labtest.Must(parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution))(t)
			names.addFile(f)
		}
	}
	return names
}

// addFile adds a file's names.
func (s symbols) addFile(f *ast.File) {
	pkg := f.Name.Name
	for _, decl := range f.Decls {
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				name = receiver(d.Recv.List[0].Type) + "." + name
			}
			s.add(pkg, name)
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						s.add(pkg, n.Name)
					}
				case *ast.TypeSpec:
					s.addType(pkg, spec)
				}
			}
		}
	}
}

func (s symbols) addType(pkg string, spec *ast.TypeSpec) {
	s.add(pkg, spec.Name.Name)
	if typ, ok := spec.Type.(*ast.StructType); ok {
		for _, field := range typ.Fields.List {
			for _, n := range field.Names {
				s.add(pkg, spec.Name.Name+"."+n.Name)
			}
		}
	}
}

func (s symbols) add(pkg, name string) {
	for part := range strings.SplitSeq(name, ".") {
		if !ast.IsExported(part) {
			return
		}
	}
	s[pkg+"."+name] = true
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
