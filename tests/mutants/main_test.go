package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestMutants lists the changes of a function. With each it is Go.
func TestMutants(t *testing.T) {
	const source = `package p

const unchanged = 1 + 2

func f(a []int, ok bool) bool {
	if ok {
		a[0] += len(a) << 1
	}
	a[1]++
	println(a)
	a = nil
	return a == nil && true
}
`
	file := filepath.Join(t.TempDir(), "p.go")
	labtest.Check(t, os.WriteFile(file, []byte(source), 0o600))
	var got []string
	for _, m := range labtest.Must(mutants(&suite{ImportPath: "p"}, file))(t) {
		changed := source[:m.from] + m.text + source[m.to:]
		if _, err := parser.ParseFile(token.NewFileSet(), "", changed, 0); err != nil || changed == source {
			t.Errorf("%q in place of %q: %v", m.text, source[m.from:m.to], err)
		}
		got = append(got, source[m.from:m.to]+"~"+m.text)
	}
	want := []string{"~!", "+=~-=", "0~1", "<<~>>", "1~2", "++~--", "1~2", "println(a)~", "a = nil~", "&&~||", "==~!=", "true~false"}
	slices.Sort(got)
	if slices.Sort(want); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestEqual finds the code of each entry of equal.txt, which is left out.
func TestEqual(t *testing.T) {
	files := map[string][]mutant{}
	for _, key := range equals() {
		file, _, _ := strings.Cut(key, "\n")
		if files[file] == nil {
			files[file] = labtest.Must(mutants(&suite{ImportPath: "github.com/goverbs/verbs/" + filepath.Dir(file)}, filepath.Join("../..", file)))(t)
		}
		if !slices.ContainsFunc(files[file], func(m mutant) bool { return m.key == key }) {
			t.Errorf("no change is\n%s", key)
		}
	}
}
