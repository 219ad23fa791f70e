package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/uverbs"
)

// verb is a row of docs/verbs.md.
type verb struct {
	function string
	ours     string
	answers  map[string][]answers // by driver, for each of probes
	probes   []uverbs.Feature     // "" where nothing is to be asked
	exported string
}

func verbs(t *testing.T) []verb {
	t.Helper()
	var verbs []verb
	for _, row := range table(t, "../../docs/verbs.md", "function", "ours", "rxe", "siw", "asked by", "exported") {
		if len(row) != 6 || slices.Contains(row, "") {
			t.Fatalf("cells are missing or empty: %q", row)
		}
		v := verb{function: row[0], ours: row[1], exported: row[5], answers: map[string][]answers{}}
		for probe := range strings.SplitSeq(row[4], "; ") {
			v.probes = append(v.probes, uverbs.Feature(strings.Trim(probe, "-")))
		}
		for driver, cell := range map[string]string{"rxe": row[2], "siw": row[3]} {
			for part := range strings.SplitSeq(cell, "; ") {
				a, err := parseAnswers(part)
				if err != nil {
					t.Fatalf("%s, %s: %v", v.function, driver, err)
				}
				v.answers[driver] = append(v.answers[driver], a)
			}
			switch n := len(v.answers[driver]); {
			case n == 1: // it holds for all
				v.answers[driver] = slices.Repeat(v.answers[driver], len(v.probes))
			case n != len(v.probes):
				t.Fatalf("%s, %s: %d answers to %d probes", v.function, driver, n, len(v.probes))
			}
		}
		verbs = append(verbs, v)
	}
	return verbs
}

var (
	quoted      = regexp.MustCompile("`([^`]*)`")
	opcodeName  = regexp.MustCompile(`^uverbs\.Op[A-Z]|^abi\.IB_UVERBS_WR_`)
	exportedHow = regexp.MustCompile(`^(1\.\d+|inline( \d+)?|private)$`)
)

// names are what the row has in backquotes.
func (v verb) names() (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(v.ours, -1) {
		names = append(names, m[1])
	}
	return names
}

func (v verb) needsNoCall() bool { return strings.HasPrefix(v.ours, "needs no call: ") }
func (v verb) refused() bool {
	return v.ours == "refused" || strings.HasPrefix(v.ours, "refused: ")
}

// TestVerbs checks what can be checked without a kernel.
func TestVerbs(t *testing.T) {
	all := verbs(t)
	if !slices.IsSortedFunc(all, func(a, b verb) int { return strings.Compare(a.function, b.function) }) {
		t.Error("the table is not sorted")
	}
	known := exported(t, "uverbs", "provider", "mmap", "abi")
	seen := map[string]bool{}
	for _, v := range all {
		if seen[v.function] {
			t.Errorf("%s: twice", v.function)
		}
		seen[v.function] = true
		names := v.names()
		for _, name := range names {
			if !known[name] {
				t.Errorf("%s: there is no exported %s", v.function, name)
			}
			if _, ok := opcodes[name]; !ok && opcodeName.MatchString(name) {
				t.Errorf("%s: %s is not posted by TestKernel", v.function, name)
			}
		}
		if len(names) == 0 && !v.needsNoCall() && !v.refused() {
			t.Errorf("%s: %q is no Go name, and not a reason for having none", v.function, v.ours)
		}
		if !exportedHow.MatchString(v.exported) {
			t.Errorf("%s: exported %q", v.function, v.exported)
		}
		for _, f := range v.probes {
			if f != "" && !slices.Contains(uverbs.Features(), f) {
				t.Errorf("%s: there is no feature %q", v.function, f)
			}
		}
		v.checkAnswers(t)
	}
}

// checkAnswers checks that the answers fit together.
func (v verb) checkAnswers(t *testing.T) {
	for driver, parts := range v.answers {
		for i, a := range parts {
			for _, since := range a {
				switch none := since.answer == "-"; {
				case none != v.needsNoCall():
					t.Errorf("%s, %s: %q of a function of which the page says %q", v.function, driver, since.answer, v.ours)
				case v.refused() && since.answer == "yes":
					t.Errorf("%s, %s: it works, but we have it not", v.function, driver)
				case v.probes[i] == "" && !slices.Contains([]string{"yes", "-", "ErrOpcode", "never"}, since.answer):
					t.Errorf("%s, %s: %s is to be seen nowhere", v.function, driver, since.answer)
				}
			}
		}
	}
}
