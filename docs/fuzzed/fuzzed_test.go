//go:build linux

// Package fuzzed tests that each parser has a fuzz test.
//
// A parser is a function that makes numbers or structures of bytes or of text that it is given: it reads an
// element of them, ranges over them, or calls Uint16, Uint32 or Uint64 of a byte order or one of [decoders].
// It is given its receiver and its parameters, the fields of these, and what it slices or converts from
// them; also if their type has a name. It has a fuzz test if one of its reads runs when fuzz tests get their
// known inputs.
//
// Left out, as they find arguments of users and names of files almost alone: functions that only split text,
// such as [strings.Cut], and what functions other than those of packages bytes and strings return. Left out
// as well are fields of fields, unsafe.Pointer, which docs/unsafe_test.go confines, and function literals
// outside of functions.
package fuzzed

import (
	"bufio"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

const (
	root   = "../.."
	module = "github.com/goverbs/verbs"
)

// skipped are folders of programs that show or test something.
var skipped = []string{".git", "build", "testdata", "gen", "tests", "labtest", "pcitest", "providertest", "scenario", "verbstest"}

// trusted are packages and functions that need no fuzz test, with the reason.
var trusted = map[string]string{
	"cm.Join":                                  "an address that the program gives",
	"cm.newMigration":                          "a request of its own",
	"cmd/verbs/internal/abicheck":              "what the kernel says of its own types",
	"cmd/verbs/internal/cli.DeviceAddrs":       "arguments of the user",
	"cmd/verbs/internal/cli.UnmarshalText":     "the same",
	"cmd/verbs/internal/cli.Width":             "COLUMNS, of the user",
	"cmd/verbs/internal/demo.runSoft":          "arguments of the user",
	"cmd/verbs/internal/perf.UnmarshalText":    "arguments of the user",
	"cmd/verbs/internal/perf.checkPattern":     "compares bytes",
	"cmd/verbs/internal/perf.counted":          "a count of the peer's, which may be any",
	"cmd/verbs/internal/perf.newLastByte":      "bytes of its own",
	"examples/fetch.fetch":                     "two numbers, of which the length is checked",
	"examples/http.answer":                     "a time to wait, which may be any",
	"examples/kv.bench":                        "arguments of the user",
	"examples/many.measure":                    "numbers of /proc",
	"examples/rdma-example/exchange.Recv":      "three numbers, which may be any",
	"examples/s3.copyFile":                     "arguments of the user",
	"examples/s3.part":                         "one number, which may be any",
	"examples/s3.verify":                       "a date, which is checked",
	"examples/valkey/valkeyrdma.handleCommand": "numbers of which handleMemory checks the length, and the server may choose the others",
	"internal/attr.Pack":                       "writes, and keeps some bits",
	"internal/engine.copyMapped":               "copies bytes, under the race detector",
	"internal/host.Lookup":                     "a name that the program gives",
	"internal/sys.Before":                      "the kernel's release",
	"internal/sys.LockedMemory":                "one number of /proc",
	"lab/connectx.change":                      "the part of an entry of a KSM, which may be any",
	"lab/connectx.use":                         "compares a request with its copy",
	"lab/debian":                               "files of Debian, whose sums are known",
	"lab/erdma.readTable":                      "addresses of the guest's memory, which are checked when that is read",
	"lab/internal/guest.Boot":                  "what the lab has put into the initramfs",
	"lab/internal/guest.inventory":             "addresses of its own interfaces",
	"lab/internal/guest.obey":                  "orders of the lab",
	"lab/internal/image":                       "kernels of Debian, whose sums are known, and the version of QEMU",
	"lab/internal/machine.ParseAdapters":       "arguments of the user",
	"lab/internal/machine.ServeSockets":        "the same",
	"lab/internal/machine.await":               "what QEMU's monitor says",
	"lab/internal/machine.dialQMP":             "the same",
	"lab/internal/machine.shorten":             "arguments of the user",
	"lab/internal/session":                     "what other runs of rdmalab write",
	"provider/erdma.postShort":                 "the request that it wrote",
	"provider/mlx5.postShort":                  "the same",
	"rconn.do":                                 "the result of an atomic, which may be any",
	"rdmadev.process":                          "one number of /proc",
	"rsock.handle":                             "4 bytes, any of which FuzzMessages gives to handleMessage",
	"s3rdma.CheckPeer":                         "the address of a socket, as net/http has it",
	"s3rdma.moved":                             "one number, all of a header, which is no more than the memory",
	"s3rdma.open":                              "an option of the program",
	"soft.makeRequested":                       "an environment variable of the user",
	"soft/internal/ucma.commonBits":            "an address that has been parsed",
	"uverbs.Counters":                          "numbers, each all of an attribute",
	"uverbs.PKeys":                             "the same",
}

// parserFunc is a function of a package with the places where it reads.
type parserFunc struct {
	pkg, name string
	reads     []token.Position
}

// TestParsersAreFuzzed builds the packages anew, for coverage.
func TestParsersAreFuzzed(t *testing.T) {
	found, tests := parsers(t)
	labtest.RequireAll(t, "takes 4 minutes of processor time")
	run := executed(t, found, tests)
	for _, p := range found {
		if !slices.ContainsFunc(p.reads, func(at token.Position) bool { return run(p.pkg, at) }) {
			t.Errorf("%v: no fuzz test has an input for %s", p.reads[0], p.name)
		}
	}
}

// parsers returns the parsers that need a fuzz test, and the packages that have fuzz tests.
func parsers(t *testing.T) (found []parserFunc, tests []string) {
	fset, files, kinds := token.NewFileSet(), map[string]*ast.File{}, newKinds()
	labtest.Check(t, filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && slices.Contains(skipped, d.Name()):
			return fs.SkipDir
		case d.IsDir() || path.Ext(file) != ".go":
			return nil
		}
		f := labtest.Must(parser.ParseFile(fset, file, nil, parser.SkipObjectResolution))(t)
		if files[file] = f; !strings.HasSuffix(file, "_test.go") {
			kinds.add(f)
		}
		return nil
	}))
	used := map[string]bool{}
	for _, file := range slices.Sorted(maps.Keys(files)) {
		pkg := path.Join(module, filepath.ToSlash(labtest.Must(filepath.Rel(root, filepath.Dir(file)))(t)))
		for _, d := range files[file].Decls {
			f, ok := d.(*ast.FuncDecl)
			switch {
			case !ok || f.Body == nil:
			case strings.HasSuffix(file, "_test.go"):
				if strings.HasPrefix(f.Name.Name, "Fuzz") && !slices.Contains(tests, pkg) {
					tests = append(tests, pkg)
				}
			default:
				p := parserFunc{pkg: pkg, name: f.Name.Name}
				for _, at := range kinds.reads(files[file].Name.Name, f) {
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
	}
	for name := range trusted {
		if !used[name] {
			t.Errorf("%s is trusted and reads nothing", name)
		}
	}
	return found, tests
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
