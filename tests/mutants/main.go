// Mutants changes the code in small ways, one at a time, and prints the changes that no test notices.
//
//	go run ./tests/mutants -n 60 -seed 1 ./internal/roce ./rmsg
//	go run ./tests/mutants -v -at srq.go:81 ./internal/engine
//
// Which changes it tries, of all that there are in the packages, follows from the seed and their text: a sample
// keeps its changes while other code is edited. Each is tried with the tests of its package that need no kernel, then
// with those of the others, and of -then, that depend on it, and last, by build/lab, with those of -kernel that import
// it. That is by go test -overlay: no file of the checkout changes. A change that does not compile does not count; one
// that the tests do not end with is noticed. Those in equal.txt change nothing that a test could see, and are left out.
// The totals are printed at the end of -limit and after an interrupt too.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutant is a change of a file: text in place of the bytes from one offset to another.
type mutant struct {
	pkg      *suite
	file     string
	from, to int
	text     string
	place    token.Position
	key      string // its entry in equal.txt, without the reason
}

// equal has an entry for each mutant that behaves like the code: its file, the lines without and with the change, the
// reason, and an empty line.
//
//go:embed equal.txt
var equal string

// equals returns the keys of the entries of equal.
func equals() (keys []string) {
	for entry := range strings.SplitSeq(strings.TrimSpace(equal), "\n\n") {
		lines := strings.Split(entry, "\n")
		keys = append(keys, strings.Join(lines[:min(3, len(lines))], "\n"))
	}
	return keys
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
func mutants(pkg *suite, file string) (list []mutant, err error) {
	fset := token.NewFileSet()
	source, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f, err := parser.ParseFile(fset, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	name := path.Join(strings.TrimPrefix(pkg.ImportPath, "github.com/goverbs/verbs/"), filepath.Base(file))
	add := func(from, to token.Pos, text string) {
		at, end := fset.Position(from), fset.Position(to).Offset
		head, tail := source[:at.Offset], source[end:]
		head = head[bytes.LastIndexByte(head, '\n')+1:]
		tail, _, _ = bytes.Cut(tail, []byte("\n"))
		line := func(middle string) string { return strings.Join(strings.Fields(string(head)+middle+string(tail)), " ") }
		key := strings.TrimSpace(name + "\n- " + line(string(source[at.Offset:end])) + "\n+ " + line(text))
		list = append(list, mutant{pkg, file, at.Offset, end, text, at, key})
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

// The results of trying a mutant, beside the name of the test that noticed it.
const (
	survived = "survived"
	invalid  = "does not compile"
)

var failed = regexp.MustCompile(`(?m)^ *--- FAIL: \S+|^running tests:\n\t\S+|^(fatal error|panic): .*`)

// suite is a package, as go list prints it, and its tests.
type suite struct {
	ImportPath, ForTest, Dir                           string
	Match, GoFiles, Imports, TestImports, XTestImports []string // Match has the patterns that name it
	Deps                                               []string // of its tests, after list

	lab   string        // the program that runs its tests on a kernel; empty for none
	limit time.Duration // after which its tests have noticed; 0 until they have run without a change
}

// list returns the packages that patterns name. After each, go list prints the program of its tests, if there are any.
func list(ctx context.Context, patterns []string) (suites []*suite, err error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-test", "-json=ImportPath,ForTest,Dir,Match,GoFiles,Imports,TestImports,XTestImports,Deps"}, patterns...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		p := new(suite)
		if err := d.Decode(p); err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		if name, ok := strings.CutSuffix(p.ImportPath, ".test"); ok {
			suites[slices.IndexFunc(suites, func(s *suite) bool { return s.ImportPath == name })].Deps = p.Deps
		} else if p.ForTest == "" {
			suites = append(suites, p)
		}
	}
	return suites, nil
}

// mayNotice tells whether the tests may depend on a package. Those on a kernel depend on some by what they share with
// others alone, as a device in user space.
func (p *suite) mayNotice(name string) bool {
	if p.lab == "" {
		return slices.Contains(p.Deps, name)
	}
	return p.ImportPath == name || slices.Contains(slices.Concat(p.Imports, p.TestImports, p.XTestImports), name)
}

// test builds the tests in dir and runs them, first the short ones. On a kernel those are all.
func (p *suite) test(ctx context.Context, dir, overlay string) (result string) {
	program := filepath.Join(dir, "test")
	os.Remove(program)
	if err := exec.CommandContext(ctx, "go", "test", "-c", "-ldflags=-s -w", "-overlay", overlay, "-o", program, p.ImportPath).Run(); err != nil {
		return invalid
	}
	command, passes := []string{program}, []string{"-test.short=true", "-test.short=false"}
	if p.lab != "" {
		command, passes = []string{p.lab, program}, passes[:1]
	}
	for _, short := range passes {
		args := slices.Concat(command, []string{"-test.failfast", short, "-test.timeout", p.limit.String()})
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = p.Dir
		if out, err := cmd.CombinedOutput(); errors.Is(err, fs.ErrNotExist) { // there are none
			return survived
		} else if err != nil {
			if overlay == "" {
				os.Stderr.Write(out)
			}
			return fmt.Sprintf("%v: %q", err, failed.FindAll(out, 2))
		}
	}
	return survived
}

// try runs suites with a mutant, until one notices.
func try(ctx context.Context, dir string, m mutant, suites []*suite, limit time.Duration) (string, error) {
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
	for _, p := range suites {
		if p.limit == 0 {
			start := time.Now()
			p.limit = limit
			if result := p.test(ctx, dir, ""); result != survived && ctx.Err() == nil {
				return "", fmt.Errorf("the tests of %s fail without a change: %s", p.ImportPath, result)
			}
			p.limit = min(limit, 10*time.Second+3*time.Since(start))
		}
		if result := p.test(ctx, dir, overlay); result != survived {
			return result, context.Cause(ctx)
		}
	}
	return survived, context.Cause(ctx)
}

func run(ctx context.Context) error {
	count := flag.Int("n", 60, "how many mutants to try, of those that compile")
	seed := flag.Uint64("seed", 1, "which of them")
	timeout := flag.Duration("timeout", 5*time.Minute, "after which a package's tests have noticed; less if they are faster without a change")
	then := flag.String("then", "", "more packages, whose tests are tried if they import a changed one")
	kernel := flag.String("kernel", "", "packages, whose tests are tried on a kernel if they are or import a changed one")
	limit := flag.Duration("limit", 24*time.Hour, "after which to try no more")
	at := flag.String("at", "", "try those alone whose place this regular expression matches: send.go:(12|34):")
	verbose := flag.Bool("v", false, "print too what tests notice, and which test did")
	least := flag.Int("least", 0, "the percentage that tests are to notice")
	flag.Parse()
	places, err := regexp.Compile(*at)
	if err != nil {
		return fmt.Errorf("-at: %w", err)
	}
	ctx, stop := context.WithTimeout(ctx, *limit)
	defer stop()
	suites, err := list(ctx, slices.Concat(flag.Args(), strings.Fields(*then)))
	if err != nil {
		return err
	}
	testers := suites
	if *kernel != "" {
		lab, err := filepath.Abs("build/lab")
		if err != nil {
			return err
		}
		kernels, err := list(ctx, strings.Fields(*kernel))
		if err != nil {
			return err
		}
		for _, p := range kernels {
			p.lab = lab
		}
		testers = slices.Concat(suites, kernels)
	}
	var all []mutant
	for _, p := range suites {
		if !slices.ContainsFunc(p.Match, func(pattern string) bool { return slices.Contains(flag.Args(), pattern) }) {
			continue // -then alone names it
		}
		for _, file := range p.GoFiles {
			if strings.HasPrefix(file, "z") { // generated
				continue
			}
			list, err := mutants(p, filepath.Join(p.Dir, file))
			if err != nil {
				return err
			}
			all = append(all, list...)
		}
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	known := equals()
	all = slices.DeleteFunc(all, func(m mutant) bool {
		return slices.Contains(known, m.key) || !places.MatchString(m.place.String())
	})
	order := func(m mutant) string {
		sum := sha256.Sum256(fmt.Append(nil, *seed, m.key))
		return string(sum[:])
	}
	slices.SortStableFunc(all, func(a, b mutant) int { return cmp.Compare(order(a), order(b)) })
	var killed, survivors, broken int
	for _, m := range all {
		if killed+survivors == *count {
			break
		}
		tried := []*suite{m.pkg}
		for _, p := range testers {
			if p != m.pkg && p.mayNotice(m.pkg.ImportPath) {
				tried = append(tried, p)
			}
		}
		var result string
		if result, err = try(ctx, dir, m, tried, *timeout); err != nil {
			break
		}
		switch result {
		case survived:
			survivors++
		case invalid:
			broken++
		default:
			killed++
		}
		if result == survived || *verbose {
			source, _ := os.ReadFile(m.file)
			fmt.Printf("%v: %q in place of %q: %s\n", m.place, m.text, source[m.from:m.to], result)
		}
	}
	percent := 100 * killed / max(killed+survivors, 1)
	fmt.Printf("%d of %d mutants noticed, %d %%; %d survived; %d did not compile; seed %d, of %d\n", killed, killed+survivors, percent, survivors, broken, *seed, len(all))
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
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
