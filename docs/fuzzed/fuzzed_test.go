//go:build linux

// Package fuzzed tests that each parser has a fuzz test.
//
// A parser is a function that makes numbers of bytes or of text: it reads an element of a parameter that
// is bytes, or calls Uint16, Uint32 or Uint64 of a byte order or one of [decoders]. It has a fuzz test
// if one of its reads runs when fuzz tests get their known inputs.
package fuzzed

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

const (
	root   = "../.."
	module = "github.com/goverbs/verbs"
)

var (
	decoders = regexp.MustCompile(`^(strconv\.(Parse(Int|Uint|Float)|Atoi)|fmt\.[SF]?[Ss]can\w*|hex\.Decode\w*|binary\.(Read|Decode|U?[Vv]arint))$`)
	numbers  = regexp.MustCompile(`^Uint(16|32|64)$`)
	bytes    = regexp.MustCompile(`^\*?\[\w*\]byte$`)
)

// skipped are folders of programs that show or test something.
var skipped = []string{".git", "build", "testdata", "examples", "gen", "tests", "labtest", "pcitest", "providertest", "scenario", "verbstest"}

// trusted are packages and functions that need no fuzz test, with the reason.
var trusted = map[string]string{
	"cmd/verbs/internal/abicheck":          "what the kernel says of its own types",
	"cmd/verbs/internal/cli":               "arguments of the user",
	"cmd/verbs/internal/doctor":            "the kernel's release",
	"cmd/verbs/internal/perf.checkPattern": "compares bytes",
	"cmd/verbs/internal/perf.counted":      "a count of the peer's, which may be any",
	"cmd/verbs/internal/perf.newLastByte":  "bytes of its own",
	"lab/connectx.change":                  "the part of an entry of a KSM, which may be any",
	"lab/connectx.use":                     "compares a request with its copy",
	"lab/debian":                           "files of Debian, whose sums are known",
	"lab/erdma.readTable":                  "addresses of the guest's memory, which are checked when that is read",
	"lab/internal/image":                   "the same",
	"lab/internal/session":                 "what other runs of rdmalab write",
	"lab/internal/machine.mark":            "what QEMU's monitor says",
	"internal/attr.Pack":                   "writes, and keeps some bits",
	"internal/engine.copyMapped":           "copies bytes, under the race detector",
	"provider/erdma.postShort":             "the request that it wrote",
	"provider/mlx5.postShort":              "the same",
	"rconn.do":                             "the result of an atomic, which may be any",
	"rdmadev.process":                      "one number of /proc",
	"rsock.handle":                         "4 bytes, any of which FuzzMessages gives to handleMessage",
	"s3rdma.moved":                         "one number, all of a header, which is no more than the memory",
	"s3rdma.rangeLength":                   "a header of the program's own",
	"soft/internal/ucma.commonBits":        "an address that has been parsed",
	"uverbs.Counters":                      "numbers, each all of an attribute",
	"uverbs.PKeys":                         "the same",
}

// parserFunc is a function of a package with the places where it reads.
type parserFunc struct {
	pkg, name string
	reads     []token.Position
}

func TestParsersAreFuzzed(t *testing.T) {
	var found []parserFunc
	var tests []string // packages with fuzz tests
	fset, used := token.NewFileSet(), map[string]bool{}
	labtest.Check(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, d.Name()):
			return fs.SkipDir
		case d.IsDir() || path.Ext(file) != ".go":
			return nil
		}
		pkg := path.Join(module, filepath.ToSlash(labtest.Must(filepath.Rel(root, filepath.Dir(file)))(t)))
		for _, d := range labtest.Must(parser.ParseFile(fset, file, nil, parser.SkipObjectResolution))(t).Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok || f.Body == nil:
			case strings.HasSuffix(file, "_test.go"):
				if strings.HasPrefix(f.Name.Name, "Fuzz") && !slices.Contains(tests, pkg) {
					tests = append(tests, pkg)
				}
			default:
				p := parserFunc{pkg: pkg, name: f.Name.Name}
				for _, at := range reads(f) {
					p.reads = append(p.reads, fset.Position(at))
				}
				if len(p.reads) == 0 {
					continue
				}
				dir := strings.TrimPrefix(pkg, module+"/")
				if name := dir + "." + p.name; trusted[name] != "" {
					used[name] = true
				} else if trusted[dir] != "" {
					used[dir] = true
				} else {
					found = append(found, p)
				}
			}
		}
		return nil
	}))
	for name := range trusted {
		if !used[name] {
			t.Errorf("%s is trusted and reads nothing", name)
		}
	}
	run := executed(t, found, tests)
	for _, p := range found {
		if !slices.ContainsFunc(p.reads, func(at token.Position) bool { return run(p.pkg, at) }) {
			t.Errorf("%v: no fuzz test has an input for %s", p.reads[0], p.name)
		}
	}
}

// reads returns where a function reads numbers.
func reads(f *ast.FuncDecl) (found []token.Pos) {
	params, written := map[string]bool{}, map[ast.Expr]bool{}
	for _, list := range []*ast.FieldList{f.Recv, f.Type.Params} {
		if list == nil {
			continue
		}
		for _, p := range list.List {
			for _, n := range p.Names {
				params[n.Name] = bytes.MatchString(types.ExprString(p.Type))
			}
		}
	}
	within := map[ast.Node]token.Pos{} // switches, by what their cases compare: no block of a profile has that
	add := func(n ast.Node) {
		at := n.Pos()
		if s, ok := within[n]; ok {
			at = s
		}
		found = append(found, at)
	}
	ast.Inspect(f.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SwitchStmt:
			for _, c := range n.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					ast.Inspect(e, func(in ast.Node) bool {
						within[in] = n.Pos()
						return true
					})
				}
			}
		case *ast.AssignStmt:
			for _, to := range n.Lhs {
				written[to] = true
			}
		case *ast.UnaryExpr:
			written[n.X] = n.Op == token.AND
		case *ast.IndexExpr:
			if of, ok := n.X.(*ast.Ident); ok && params[of.Name] && !written[n] {
				add(n)
			}
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if ok && (len(n.Args) == 1 && numbers.MatchString(s.Sel.Name) || decoders.MatchString(types.ExprString(s))) {
				add(n)
			}
		}
		return true
	})
	return found
}

// executed runs the fuzz tests on their known inputs. The function that it returns reports whether they
// executed what is at a place in a package.
func executed(t *testing.T, found []parserFunc, tests []string) func(pkg string, at token.Position) bool {
	var pkgs []string
	for _, p := range found {
		if !slices.Contains(pkgs, p.pkg) {
			pkgs = append(pkgs, p.pkg)
		}
	}
	profile := filepath.Join(t.TempDir(), "cover.out")
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"test", "-ldflags=-w", "-run", "^Fuzz", "-coverprofile", profile, "-coverpkg", strings.Join(pkgs, ",")}, tests...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	type block struct{ line, col, endLine, endCol, statements, count int }
	blocks := map[string][]block{}
	f := labtest.Must(os.Open(profile))(t)
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		file, rest, _ := strings.Cut(s.Text(), ":")
		var b block
		if n, _ := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d", &b.line, &b.col, &b.endLine, &b.endCol, &b.statements, &b.count); n == 6 && b.count > 0 {
			blocks[file] = append(blocks[file], b)
		}
	}
	return func(pkg string, at token.Position) bool {
		return slices.ContainsFunc(blocks[path.Join(pkg, filepath.Base(at.Filename))], func(b block) bool {
			return (b.line < at.Line || b.line == at.Line && b.col <= at.Column) && (at.Line < b.endLine || at.Line == b.endLine && at.Column < b.endCol)
		})
	}
}
