//go:build linux

package docs

import (
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/goverbs/verbs" // go test notices when these change
	_ "github.com/goverbs/verbs/abi"
	_ "github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
	_ "github.com/goverbs/verbs/mmap"
	_ "github.com/goverbs/verbs/provider/rxe"
	_ "github.com/goverbs/verbs/provider/siw"
	_ "github.com/goverbs/verbs/providertest"
	_ "github.com/goverbs/verbs/rconn"
	_ "github.com/goverbs/verbs/rdmadev"
	_ "github.com/goverbs/verbs/rdmatest"
	_ "github.com/goverbs/verbs/rmsg"
	_ "github.com/goverbs/verbs/rsock"
	_ "github.com/goverbs/verbs/soft"
	_ "github.com/goverbs/verbs/uverbs"
	_ "github.com/goverbs/verbs/verbstest"
)

const (
	module = "github.com/goverbs/verbs"
	sys    = "golang.org/x/sys"
)

// libraries are the packages that programs import.
var libraries = []string{".", "./abi", "./cm", "./mmap", "./provider/...", "./providertest", "./rconn", "./rdmadev", "./rdmatest", "./rmsg", "./rsock", "./soft", "./uverbs", "./verbstest"}

// list runs go list on the packages that programs import and returns the words of its output.
func list(t *testing.T, args ...string) []string {
	t.Helper()
	cmd := exec.Command("go", append(append([]string{"list"}, args...), libraries...)...)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "GOWORK=off")
	cmd.Stderr = t.Output()
	return strings.Fields(string(labtest.Must(cmd.Output())(t)))
}

// loaded is what packages has loaded, for all tests.
var loaded map[string]*types.Package

// packages returns the packages that programs import, by name.
func packages(t *testing.T) map[string]*types.Package {
	t.Helper()
	if loaded != nil {
		return loaded
	}
	compiled := map[string]string{}
	for _, pair := range list(t, "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}") {
		path, file, _ := strings.Cut(pair, "=")
		compiled[path] = file
	}
	load := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(compiled[path]) })
	pkgs := map[string]*types.Package{}
	for _, path := range list(t) {
		pkg := labtest.Must(load.Import(path))(t)
		pkgs[pkg.Name()] = pkg
	}
	loaded = pkgs
	return pkgs
}

// TestAPI checks that the packages that programs use expose only their own types and those
// of the module's root: no alias hides a type's fields and methods, and no structure of
// the kernel or of an internal package is part of the API.
func TestAPI(t *testing.T) {
	pkgs := packages(t)
	for _, name := range []string{"verbs", "uverbs", "cm", "rconn", "rmsg", "rsock"} {
		scope := pkgs[name].Scope()
		for _, n := range scope.Names() {
			obj := scope.Lookup(n)
			if !obj.Exported() {
				continue
			}
			if typ, ok := obj.(*types.TypeName); ok && typ.IsAlias() {
				t.Errorf("%s.%s is an alias", name, n)
			}
			a := api{t, name + "." + n, map[types.Type]bool{}}
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

// TestDependencies checks what a program gets with the packages that it imports: x/sys and
// nothing else, in its build, its go.mod and its go.sum.
func TestDependencies(t *testing.T) {
	modules := list(t, "-deps", "-test", "-f", "{{with .Module}}{{.Path}}{{end}}")
	slices.Sort(modules)
	if modules = slices.Compact(modules); !slices.Equal(modules, []string{module, sys}) {
		t.Errorf("the packages and their tests need %v", modules)
	}

	// A program's versions are at least those of our go.mod, also of modules that the
	// packages do not import. Programs have versions of these of their own.
	mod := read(t, "go.mod")
	for _, common := range []string{"golang.org/x/net ", "golang.org/x/text ", "google.golang.org/", "github.com/prometheus/"} {
		if strings.Contains(mod, common) {
			t.Errorf("go.mod requires %s", common)
		}
	}
	if strings.Contains(mod, "\nreplace ") { // go install cmd/verbs@latest refuses these
		t.Error("go.mod has a replacement")
	}

	dir := t.TempDir()
	program := "package main\n\nimport (\n"
	for _, path := range list(t) {
		if !strings.Contains(path, "/internal/") {
			program += "\t_ \"" + path + "\"\n"
		}
	}
	labtest.Check(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(program+")\n\nfunc main() {}\n"), 0o666))
	labtest.Check(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module program\n\ngo 1.26.0\n\nrequire "+module+" v0.0.0\n\nreplace "+module+" => "+labtest.Must(filepath.Abs(root))(t)+"\n"), 0o666))
	tidy := exec.Command("go", "mod", "tidy")
	tidy.Dir, tidy.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod", "GOSUMDB=off")
	if out, err := tidy.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(labtest.Must(os.ReadFile(filepath.Join(dir, "go.sum")))(t))) {
		if !strings.HasPrefix(line, sys+" ") {
			t.Errorf("go.sum of a program has %s", line)
		}
	}
}
