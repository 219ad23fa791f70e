//go:build linux

package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestDocComments finds doc comments that begin with another name than that of their declaration:
// what they described has been moved or renamed.
func TestDocComments(t *testing.T) {
	type comment struct{ place, name, first string }
	declared := map[string]map[string]bool{} // by package
	var comments []comment
	fset := token.NewFileSet()
	files(t, ".go", func(file, text string) {
		f := labtest.Must(parser.ParseFile(fset, file, text, parser.ParseComments|parser.SkipObjectResolution))(t)
		dir := path.Dir(file)
		if declared[dir] == nil {
			declared[dir] = map[string]bool{}
		}
		add := func(name *ast.Ident, doc *ast.CommentGroup, method bool) {
			if !method {
				declared[dir][name.Name] = true
			}
			first, _, _ := strings.Cut(strings.TrimSpace(doc.Text()), " ")
			comments = append(comments, comment{fset.Position(name.Pos()).String(), name.Name, first})
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				add(d.Name, d.Doc, d.Recv != nil)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						doc := s.Doc
						if doc == nil && len(d.Specs) == 1 {
							doc = d.Doc
						}
						add(s.Name, doc, false)
					case *ast.ValueSpec:
						for _, n := range s.Names {
							declared[dir][n.Name] = true
						}
					}
				}
			}
		}
	})
	inner := regexp.MustCompile(`^\w[a-z]*[A-Z]\w*$`)
	camel := regexp.MustCompile(`^[a-z]+[A-Z]\w*$`)
	for _, c := range comments {
		// send and Next may begin a sentence, newSide is a name.
		if c.first != c.name && (camel.MatchString(c.first) || inner.MatchString(c.first) && declared[path.Dir(c.place)][c.first]) {
			t.Errorf("%s: the comment of %s begins with %s", c.place, c.name, c.first)
		}
	}
}

// TestArchitecture: each internal package has a row in the table of packages.
func TestArchitecture(t *testing.T) {
	text := read(t, "docs/architecture.md")
	for _, d := range labtest.Must(os.ReadDir(filepath.Join(root, "internal")))(t) {
		if !strings.Contains(text, "`internal/"+d.Name()+"`") {
			t.Errorf("docs/architecture.md does not name internal/%s", d.Name())
		}
	}
}

// TestFuzzTests: the page that says what is fuzzed names each fuzz test.
func TestFuzzTests(t *testing.T) {
	text := read(t, "docs/reliability.md")
	files(t, ".go", func(file, source string) {
		for _, m := range regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`).FindAllStringSubmatch(source, -1) {
			dir := path.Dir(file)
			if dir == "." {
				dir = "verbs"
			}
			if !strings.Contains(text, "`"+dir+"."+m[1]+"`") {
				t.Errorf("docs/reliability.md does not name %s.%s", dir, m[1])
			}
		}
	})
}

// TestOptions: the page of options has a row for each of package cm.
func TestOptions(t *testing.T) {
	text := read(t, "docs/options.md")
	pkg := packages(t)["cm"]
	for _, name := range []string{"Dialer", "ListenConfig", "Options"} {
		s := pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct)
		for i := range s.NumFields() {
			if f := s.Field(i); f.Exported() && !f.Embedded() && !strings.Contains(text, "\n| `cm."+name+"."+f.Name()+"` |") {
				t.Errorf("docs/options.md has no row for cm.%s.%s", name, f.Name())
			}
		}
	}
}
