package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest/tool"
)

// TestMain lets the test binary run as the go command of a part.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "go" {
		main()
	}
	os.Exit(m.Run())
}

// TestRun runs a part of a small module: its tests are counted, those that they run themselves are not, and the part
// goes on after a target has failed.
func TestRun(t *testing.T) {
	for _, program := range []string{"go", "make", "git"} {
		tool.Path(t, program)
	}
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{
		"go.mod":   "module m\n\ngo 1.26.0\n",
		"Makefile": "bad:\n\tfalse\ngood:\n\tgo vet .\n\tgo test -count 1 .\n\tgo test -list . . >list\n",
		"m_test.go": `package m

import (
	"os/exec"
	"testing"
)

func TestPass(t *testing.T) {
	if out, err := exec.Command("go", "test", "-run", "Skip", ".").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
func TestSkip(t *testing.T) { t.Skip("no kernel") }
`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	output("git", "init", "-q")
	output("git", "add", ".")
	output("git", "-c", "user.name=x", "-c", "user.email=x@example.com", "commit", "-qm", "x")
	r, err := part{name: "x", makes: []string{"bad", "good"}}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r.Passed != 1 || len(r.Failed) != 0 || !maps.Equal(r.Skipped, map[string]int{"no kernel": 1}) || len(r.Errors) != 1 || r.ok() {
		t.Errorf("%+v", r)
	}
	if list, err := os.ReadFile("list"); err != nil || !strings.HasPrefix(string(list), "TestPass\nTestSkip\nok ") {
		t.Errorf("%q, %v", list, err)
	}
	if strings.HasSuffix(r.Commit, "+") || len(r.Commit) != 10 || r.Machine == "" || r.Load == "" {
		t.Errorf("%+v", r)
	}
}

const events = `{"Action":"start","Package":"p"}
{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:7: broken\n"}
{"Action":"output","Package":"p","Test":"TestA","Output":"--- FAIL: TestA (0.00s)\n"}
{"Action":"fail","Package":"p","Test":"TestA","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestB/x","Output":"    lab.go:9: needs a kernel: run make test-lab\n"}
{"Action":"output","Package":"p","Test":"TestB/x","Output":"--- SKIP: TestB/x (0.00s)\n"}
{"Action":"skip","Package":"p","Test":"TestB/x","Elapsed":0}
{"Action":"pass","Package":"p","Test":"TestB","Elapsed":0}
{"Action":"output","Package":"p","Test":"TestC","Output":"=== RUN   TestC\n"}
{"Action":"output","Package":"p","Test":"TestC","Output":"panic: test timed out after 10m0s\n"}
{"Action":"output","Package":"p","Output":"FAIL\tp\t0.1s\n"}
{"Action":"fail","Package":"p","Elapsed":0.1}
{"Action":"output","Package":"q","Output":"ok  \tq\t0.1s\n"}
{"Action":"pass","Package":"q","Elapsed":0.1}
{"ImportPath":"r","Action":"build-output","Output":"r.go:1: syntax error\n"}
not JSON
`

// TestPrinter: a go test with -json is counted, and prints what it would print without.
func TestPrinter(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"test", "-count", "1", "./..."}, "=== RUN   TestA\n    a_test.go:7: broken\n--- FAIL: TestA (0.00s)\n=== RUN   TestC\npanic: test timed out after 10m0s\nFAIL\tp\t0.1s\nok  \tq\t0.1s\nr.go:1: syntax error\nnot JSON\n"},
		{[]string{"test", "-v", "p"}, "=== RUN   TestA\n    a_test.go:7: broken\n--- FAIL: TestA (0.00s)\n    lab.go:9: needs a kernel: run make test-lab\n--- SKIP: TestB/x (0.00s)\n=== RUN   TestC\npanic: test timed out after 10m0s\nFAIL\tp\t0.1s\nok  \tq\t0.1s\nr.go:1: syntax error\nnot JSON\n"},
		{[]string{"test", "-json", "p", "-args", "-v"}, events},
		{[]string{"test", "-fuzz", "F", "-json", "p"}, events},
	} {
		var out strings.Builder
		p := newPrinter(&out, c.args)
		p.copy(strings.NewReader(events))
		if out.String() != c.want {
			t.Errorf("%v printed\n%s\nwant\n%s", c.args, out.String(), c.want)
		}
		failed := []string{"p TestA", "p TestC", "p"}
		if slices.Contains(c.args, "-fuzz") { // fuzz.sh knows which failures are none
			failed = nil
		}
		if p.count.Passed != 1 || !slices.Equal(p.count.Failed, failed) || !maps.Equal(p.count.Skipped, map[string]int{"needs a kernel: run make test-lab": 1}) {
			t.Errorf("%v counted %+v", c.args, p.count)
		}
	}
}

// TestRows: a file keeps of each part the last row and the last that passed.
func TestRows(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.Mkdir("docs", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, r := range []row{
		{Part: "host", Commit: "1"}, {Part: "host", Commit: "2"}, {Part: "race", Commit: "2"},
		{Part: "host", Commit: "3", Errors: []string{"not finished"}}, {Part: "host", Commit: "4", count: count{Passed: 8, Failed: []string{"cm TestX"}}},
	} {
		if err := record(r); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := readRows()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range rows {
		got = append(got, r.Part+r.Commit)
	}
	if want := []string{"host2", "race2", "host4"}; !slices.Equal(got, want) {
		t.Errorf("kept %v, want %v", got, want)
	}
	if text, err := os.ReadFile(pageFile); err != nil || !strings.Contains(string(text), "| 2 | 0 |  | 0 | 0 | , 4, 0 min: cm TestX |") {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestPageIsCurrent: the page shows the rows of the file, and the parts of the table.
func TestPageIsCurrent(t *testing.T) {
	t.Chdir("../..")
	rows, err := readRows()
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(pageFile); err != nil || string(text) != page(rows) {
		t.Errorf("%s is not written from %s: run parts (%v)", pageFile, rowsFile, err)
	}
}

// forPeople are targets that show, write or measure something.
var forPeople = []string{"help", "demo", "tidy", "generate", "build", "release", "bench", "bench-native", "bench-mlx5", "bench-erdma", "test-all", "flakes", "mutants"}

// TestEveryTarget: each target of the Makefile is run by a part, by CI, or by people for what it writes.
func TestEveryTarget(t *testing.T) {
	root := "../.."
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	run := slices.Clone(forPeople)
	for _, p := range parts {
		for _, m := range p.makes {
			run = append(run, strings.Fields(m)[0])
		}
	}
	workflows, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(workflows) == 0 {
		t.Fatal(workflows, err)
	}
	for _, file := range append(workflows, filepath.Join(root, ".ci/run")) {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\bmake ([a-z][a-z0-9-]*)`).FindAllStringSubmatch(string(text), -1) {
			run = append(run, m[1])
		}
	}
	for changed := true; changed; { // what these need is run as well
		changed = false
		for _, m := range regexp.MustCompile(`(?m)^([a-z0-9-]+):([^=\n]*?)(?:##.*)?$`).FindAllStringSubmatch(string(text), -1) {
			for need := range strings.FieldsSeq(m[2]) {
				if slices.Contains(run, m[1]) && !slices.Contains(run, need) {
					run, changed = append(run, need), true
				}
			}
		}
	}
	targets := regexp.MustCompile(`(?m)^([a-z0-9-]+):.*## `).FindAllStringSubmatch(string(text), -1)
	if len(targets) < 30 {
		t.Errorf("the Makefile has %d targets", len(targets))
	}
	for _, m := range targets {
		if !slices.Contains(run, m[1]) {
			t.Errorf("nothing runs make %s: add it to a part, or delete it", m[1])
		}
	}
	for _, p := range parts { // and the targets of parts exist
		for _, m := range p.makes {
			if !strings.Contains(string(text), "\n"+strings.Fields(m)[0]+":") {
				t.Errorf("part %s: there is no make %s", p.name, m)
			}
		}
	}
}
