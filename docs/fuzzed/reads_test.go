//go:build linux

package fuzzed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

var (
	decoders = regexp.MustCompile(`^(strconv\.(Parse(Int|Uint|Float|Bool)|Atoi|Unquote)|fmt\.[SF]?[Ss]can\w*|(hex|base64\.\w+)\.Decode\w*|binary\.(Read|Decode|U?[Vv]arint)|(json|xml|gob)\.(Unmarshal|NewDecoder)|netip\.(Parse\w+|AddrFromSlice)|net\.Parse\w+|url\.Parse\w*|time\.Parse\w*|mmap\.Slice\[.*\])$`)
	helpers  = regexp.MustCompile(`^(bytes|strings)\.`)
	numbers  = regexp.MustCompile(`^Uint(16|32|64)$`)
	bytes    = regexp.MustCompile(`^(\[\w*\]byte|string)$`)
)

// kinds are the types of all packages that are bytes or have fields of bytes.
type kinds struct {
	bytes  map[string]bool // by package and name, as nldev.Attrs
	fields map[string]bool // by package, type and name
}

func newKinds() kinds { return kinds{map[string]bool{}, map[string]bool{}} }

// add adds the types of a file.
func (k kinds) add(file *ast.File) {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, s := range g.Specs {
			s, ok := s.(*ast.TypeSpec)
			if !ok {
				continue
			}
			name := file.Name.Name + "." + s.Name.Name
			if t, ok := s.Type.(*ast.StructType); ok {
				for _, f := range t.Fields.List {
					for _, n := range f.Names {
						k.fields[name+"."+n.Name] = k.isBytes(file.Name.Name, f.Type)
					}
				}
			} else if bytes.MatchString(types.ExprString(s.Type)) && types.ExprString(s.Type) != "string" {
				k.bytes[name] = true
			}
		}
	}
}

// named returns the name of a type with its package.
func named(pkg string, t ast.Expr) string {
	name := strings.TrimPrefix(types.ExprString(t), "*")
	if strings.Contains(name, ".") {
		return name
	}
	return pkg + "." + name
}

func (k kinds) isBytes(pkg string, t ast.Expr) bool {
	return bytes.MatchString(strings.TrimPrefix(types.ExprString(t), "*")) || k.bytes[named(pkg, t)]
}

// reads returns where a function of a package reads bytes that it was given, or decodes some.
func (k kinds) reads(pkg string, f *ast.FuncDecl) (found []token.Pos) {
	vars, structs := map[string]bool{}, map[string]string{} // vars are bytes
	for _, list := range []*ast.FieldList{f.Recv, f.Type.Params} {
		if list == nil {
			continue
		}
		for _, p := range list.List {
			for _, n := range p.Names {
				vars[n.Name], structs[n.Name] = k.isBytes(pkg, p.Type), named(pkg, p.Type)
			}
		}
	}
	var foreign func(e ast.Expr) bool // are bytes that the function was given
	foreign = func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.Ident:
			return vars[e.Name]
		case *ast.ParenExpr:
			return foreign(e.X)
		case *ast.StarExpr:
			return foreign(e.X)
		case *ast.SliceExpr:
			return foreign(e.X)
		case *ast.SelectorExpr:
			of, ok := e.X.(*ast.Ident)
			return ok && k.fields[structs[of.Name]+"."+e.Sel.Name]
		case *ast.CallExpr: // a conversion, or bytes.TrimSpace and the like
			return len(e.Args) > 0 && (k.isBytes(pkg, e.Fun) || helpers.MatchString(types.ExprString(e.Fun))) && foreign(e.Args[0])
		}
		return false
	}
	written, within := map[ast.Expr]bool{}, map[ast.Node]token.Pos{} // switches, by what their cases compare: no block of a profile has that
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
			for i, to := range n.Lhs {
				written[to] = true
				if v, ok := to.(*ast.Ident); ok && foreign(n.Rhs[min(i, len(n.Rhs)-1)]) {
					vars[v.Name] = true
				}
			}
		case *ast.UnaryExpr:
			written[n.X] = n.Op == token.AND
		case *ast.RangeStmt:
			if n.Value != nil && foreign(n.X) {
				add(n)
			}
		case *ast.IndexExpr:
			if foreign(n.X) && !written[n] {
				add(n)
			}
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if ok && len(n.Args) == 1 && numbers.MatchString(s.Sel.Name) || decoders.MatchString(types.ExprString(n.Fun)) {
				add(n)
			}
		}
		return true
	})
	return found
}

// TestReads has one function for each way to read, and some that do not.
func TestReads(t *testing.T) {
	const types = `package p
type cqe [64]byte
type attrs []byte
type reader struct { buf, other []byte; name string; numbers []int }
`
	for source, want := range map[string]int{
		"func f(b []byte) byte { return b[0] }":                                        1,
		"func f(s string) byte { return s[0] }":                                        1,
		"func f(b *[4]byte) byte { return b[0] + b[1] }":                               2,
		"func (c *cqe) f() byte { return c[63] }":                                      1,
		"func f(c *cqe) byte { return (*c)[63] }":                                      1,
		"func f(a attrs) byte { return a[:4][2] }":                                     1,
		"func f(a q.attrs) byte { return a[0] }":                                       1,
		"func (r *reader) f(i int) byte { return r.buf[i] + r.name[i] }":               2,
		"func f(b []byte) byte { rest := b[4:]; return rest[0] }":                      1,
		"func f(b []byte) byte { b, rest := b[:4], b[4:]; b = nil; return rest[0] }":   1,
		"func f(b []byte) byte { rest, ok := bytes.CutPrefix(b, p); return rest[0] }":  1,
		"func f(s string) byte { b := []byte(s); return b[0] }":                        1,
		"func f(b []byte) (n int) { for _, c := range b { n += int(c) }; return n }":   1,
		"func f(b []byte) { switch { case b[0] == 1: } }":                              1,
		"func f(b []byte) uint32 { return binary.BigEndian.Uint32(b) }":                1,
		"func f(b []byte) error { return json.Unmarshal(b, &v) }":                      1,
		"func f(r io.Reader) error { return json.NewDecoder(r).Decode(&v) }":           1,
		"func f(s string) netip.Addr { a, _ := netip.ParseAddr(s); return a }":         1,
		"func f(b []byte) *header { return &mmap.Slice[header](b, 0, 1)[0] }":          1,
		"func f(b []byte) { b[0] = 1; p := &b[1] }":                                    0,
		"func f(b []byte) { for i := range b { b[i] = 0 } }":                           0,
		"func f(b []byte) []byte { own := make([]byte, 4); return append(own, b...) }": 0,
		"func f(n []int) int { own := []byte{1}; return n[0] + int(own[0]) }":          0,
		"func (r *reader) f() int { return r.numbers[0] }":                             0,
		"func f(b []byte) uint64 { return c.Uint64(b, 1) }":                            0,
	} {
		file := labtest.Must(parser.ParseFile(token.NewFileSet(), "p.go", types+source, parser.SkipObjectResolution))(t)
		k := newKinds()
		k.add(file)
		k.bytes["q.attrs"] = true
		if got := len(k.reads("p", file.Decls[len(file.Decls)-1].(*ast.FuncDecl))); got != want {
			t.Errorf("%d reads, want %d: %s", got, want, source)
		}
	}
}
