// Mutants changes the code in small ways, one at a time, and prints the changes that no test notices.
//
//	go run ./tests/mutants -n 60 -seed 1 ./internal/roce ./rmsg
//
// Which changes it tries, of all that there are in the packages, follows from the seed. Each is tried with
// the tests of its package that need no kernel, by go test -overlay: no file of the checkout changes. A change
// that does not compile does not count; one that the tests do not end with is noticed.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutant is a change of a file: text in place of the bytes from one offset to another.
type mutant struct {
	pkg, file string
	from, to  int
	text      string
	place     token.Position
}

// operators are those that take the place of others.
var operators = map[token.Token]token.Token{
	token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR, token.EQL: token.NEQ, token.NEQ: token.EQL,
	token.LAND: token.LOR, token.LOR: token.LAND, token.ADD: token.SUB, token.SUB: token.ADD, token.MUL: token.ADD, token.QUO: token.MUL,
	token.SHL: token.SHR, token.SHR: token.SHL, token.AND: token.OR, token.OR: token.AND, token.AND_NOT: token.AND, token.REM: token.ADD,
	token.ADD_ASSIGN: token.SUB_ASSIGN, token.SUB_ASSIGN: token.ADD_ASSIGN, token.INC: token.DEC, token.DEC: token.INC,
	token.OR_ASSIGN: token.AND_ASSIGN, token.AND_ASSIGN: token.OR_ASSIGN,
}

// mutants returns the changes of a file.
func mutants(pkg, file string) (list []mutant, err error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	add := func(from, to token.Pos, text string) {
		at := fset.Position(from)
		list = append(list, mutant{pkg, file, at.Offset, fset.Position(to).Offset, text, at})
	}
	swap := func(at token.Pos, op token.Token) {
		if with, ok := operators[op]; ok {
			add(at, at+token.Pos(len(op.String())), with.String())
		}
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				swap(n.OpPos, n.Op)
			case *ast.IncDecStmt:
				swap(n.TokPos, n.Tok)
			case *ast.AssignStmt:
				swap(n.TokPos, n.Tok)
				if n.Tok == token.ASSIGN {
					add(n.Pos(), n.End(), "")
				}
			case *ast.ExprStmt:
				add(n.Pos(), n.End(), "")
			case *ast.IfStmt:
				if _, compares := n.Cond.(*ast.BinaryExpr); !compares {
					add(n.Cond.Pos(), n.Cond.Pos(), "!")
				}
			case *ast.Ident:
				if flip := map[string]string{"true": "false", "false": "true"}[n.Name]; flip != "" {
					add(n.Pos(), n.End(), flip)
				}
			case *ast.BasicLit:
				if v, err := strconv.ParseInt(n.Value, 0, 64); err == nil && n.Kind == token.INT {
					add(n.Pos(), n.End(), strconv.FormatInt(v+1, 10))
				}
			}
			return true
		})
	}
	return list, nil
}

// The results of trying a mutant.
const (
	killed   = "killed"
	survived = "survived"
	invalid  = "does not compile"
)

// test runs the tests of a package, first the short ones. built is false if it does not compile.
func test(ctx context.Context, pkg, overlay string, limit time.Duration) (built, passed bool) {
	for _, short := range []string{"-short=true", "-short=false"} {
		cmd := exec.CommandContext(ctx, "go", "test", "-overlay", overlay, "-vet=off", "-failfast", "-count", "1", short, "-timeout", limit.String(), pkg)
		if out, err := cmd.CombinedOutput(); err != nil {
			return !bytes.Contains(out, []byte("[build failed]")), false
		}
	}
	return true, true
}

// try runs the tests of a mutant's package with it.
func try(ctx context.Context, dir string, m mutant, limit time.Duration) (string, error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return "", err
	}
	changed, overlay := filepath.Join(dir, "changed.go"), filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(changed, slices.Concat(source[:m.from], []byte(m.text), source[m.to:]), 0o600); err != nil {
		return "", err
	}
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {m.file: changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return "", err
	}
	switch built, passed := test(ctx, m.pkg, overlay, limit); {
	case ctx.Err() != nil:
		return "", context.Cause(ctx)
	case passed:
		return survived, nil
	case !built:
		return invalid, nil
	}
	return killed, nil
}

func run(ctx context.Context) error {
	count := flag.Int("n", 60, "how many mutants to try, of those that compile")
	seed := flag.Uint64("seed", 1, "which of them")
	limit := flag.Duration("timeout", 2*time.Minute, "after which a package's tests have noticed")
	least := flag.Int("least", 0, "the percentage that tests are to notice")
	flag.Parse()
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-f", `{{$p := .}}{{range .GoFiles}}{{$p.ImportPath}} {{$p.Dir}}/{{.}}{{"\n"}}{{end}}`}, flag.Args()...)...)
	cmd.Stderr = os.Stderr
	files, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	var all []mutant
	for line := range strings.Lines(string(files)) {
		pkg, file, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.HasPrefix(filepath.Base(file), "z") { // generated
			continue
		}
		list, err := mutants(pkg, file)
		if err != nil {
			return err
		}
		all = append(all, list...)
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	total := len(all)
	rng := rand.New(rand.NewPCG(*seed, 0))
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	results, sound := map[string]int{}, map[string]bool{}
	for _, m := range all {
		if results[killed]+results[survived] == *count {
			break
		}
		if !sound[m.pkg] {
			if _, passed := test(ctx, m.pkg, "", *limit); !passed {
				return fmt.Errorf("the tests of %s fail without a change", m.pkg)
			}
			sound[m.pkg] = true
		}
		result, err := try(ctx, dir, m, *limit)
		if err != nil {
			return err
		}
		results[result]++
		if result == survived {
			source, _ := os.ReadFile(m.file)
			fmt.Printf("%v: %q in place of %q\n", m.place, m.text, source[m.from:m.to])
		}
	}
	tried := results[killed] + results[survived]
	percent := 100 * results[killed] / max(tried, 1)
	fmt.Printf("%d of %d mutants noticed, %d %%; %d did not compile; seed %d, of %d\n", results[killed], tried, percent, results[invalid], *seed, total)
	if percent < *least {
		return fmt.Errorf("less than %d %%", *least)
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}
