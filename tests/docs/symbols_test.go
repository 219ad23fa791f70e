package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"strings"
	"testing"
)

// symbols are the exported names of packages, as "uverbs.QP.PostSend".
type symbols map[string]bool

// exported reads the sources of this module's packages.
func exported(t *testing.T, packages ...string) symbols {
	t.Helper()
	names := symbols{}
	aliases := map[string]string{}
	for _, pkg := range packages {
		files, err := filepath.Glob(filepath.Join("../..", pkg, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("package %s: %v, %v", pkg, files, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			names.addFile(f, aliases)
		}
	}
	for alias, target := range aliases {
		for name := range maps.Clone(names) {
			if member, ok := strings.CutPrefix(name, target+"."); ok {
				names[alias+"."+member] = true
			}
		}
	}
	return names
}

// addFile adds a file's names, and to aliases the types that stand for others.
func (s symbols) addFile(f *ast.File, aliases map[string]string) {
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
					s.addType(pkg, spec, aliases)
				}
			}
		}
	}
}

func (s symbols) addType(pkg string, spec *ast.TypeSpec, aliases map[string]string) {
	s.add(pkg, spec.Name.Name)
	switch typ := spec.Type.(type) {
	case *ast.StructType:
		for _, field := range typ.Fields.List {
			for _, n := range field.Names {
				s.add(pkg, spec.Name.Name+"."+n.Name)
			}
		}
	case *ast.SelectorExpr:
		if from, ok := typ.X.(*ast.Ident); ok && spec.Assign.IsValid() {
			aliases[pkg+"."+spec.Name.Name] = from.Name + "." + typ.Sel.Name
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
