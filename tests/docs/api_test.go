package docs

import (
	"go/importer"
	"go/token"
	"go/types"
	"os"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

const module = "github.com/goverbs/verbs"

// TestAPI checks that the packages that programs use expose only their own types and those
// of the module's root: no alias hides a type's fields and methods, and no structure of
// the kernel or of an internal package is part of the API.
func TestAPI(t *testing.T) {
	for _, pkg := range packages(t, "", "/uverbs", "/cm", "/rconn", "/rmsg", "/rsock") {
		scope := pkg.Scope()
		for _, n := range scope.Names() {
			obj := scope.Lookup(n)
			if !obj.Exported() {
				continue
			}
			if typ, ok := obj.(*types.TypeName); ok && typ.IsAlias() {
				t.Errorf("%s.%s is an alias", pkg.Name(), n)
			}
			a := api{t, pkg.Name() + "." + n, map[types.Type]bool{}}
			a.walk(obj.Type())
			if named, ok := obj.Type().(*types.Named); ok {
				a.walk(named.Underlying())
				for m := range named.Methods() {
					if m.Exported() {
						api{t, a.what + "." + m.Name(), a.seen}.walk(m.Type())
					}
				}
			}
		}
	}
}

// onHost skips a test of sources in the lab, where it takes minutes and checks nothing more.
func onHost(t *testing.T) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("needs no kernel: it runs on the host")
	}
}

// packages returns packages of the module, type-checked from source.
func packages(t *testing.T, names ...string) (pkgs []*types.Package) {
	onHost(t)
	sources := importer.ForCompiler(token.NewFileSet(), "source", nil)
	for _, name := range names {
		pkg := labtest.Must(sources.Import(module + name))(t)
		pkgs = append(pkgs, pkg)
	}
	return pkgs
}

// api checks one name of the API.
type api struct {
	t    *testing.T
	what string
	seen map[types.Type]bool
}

// walk checks the types that make up a type, as far as they are visible to programs.
func (a api) walk(typ types.Type) {
	if a.seen[typ] {
		return
	}
	a.seen[typ] = true
	switch typ := typ.(type) {
	case *types.Named:
		if pkg := typ.Obj().Pkg(); pkg != nil {
			path := strings.TrimPrefix(pkg.Path(), module+"/")
			if path != pkg.Path() && (strings.HasPrefix(path, "internal/") || strings.HasPrefix(path, "provider") || path == "abi" || path == "mmap") {
				a.t.Errorf("%s has %v", a.what, typ)
			}
		}
		for arg := range typ.TypeArgs().Types() {
			a.walk(arg)
		}
	case *types.Signature:
		a.walk(typ.Params())
		a.walk(typ.Results())
	case *types.Tuple:
		for v := range typ.Variables() {
			a.walk(v.Type())
		}
	case *types.Struct:
		for f := range typ.Fields() {
			if f.Exported() {
				a.walk(f.Type())
			}
		}
	case *types.Interface:
		for m := range typ.Methods() {
			a.walk(m.Type())
		}
	case *types.Map:
		a.walk(typ.Key())
		a.walk(typ.Elem())
	case interface{ Elem() types.Type }: // pointers, slices, arrays, channels
		a.walk(typ.Elem())
	}
}
