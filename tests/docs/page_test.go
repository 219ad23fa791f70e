package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// page is a table of a library's functions.
type page struct {
	file     string
	library  string // without .so.1
	versions string // prefix of its symbols' versions
	prefix   string // of the functions in the table
	fewest   int    // functions that a library has
	headers  []string
}

var pages = []page{{
	file: "verbs.md", library: "libibverbs", versions: "IBVERBS_", fewest: 70,
	headers: []string{"infiniband/verbs.h"},
}, {
	file: "cm.md", library: "librdmacm", versions: "RDMACM_", prefix: "rdma_", fewest: 41,
	headers: []string{"rdma/rdma_cma.h", "rdma/rdma_verbs.h"},
}}

// function is a row of the table.
type function struct {
	name     string
	ours     string
	answers  map[string][]answers // by driver, for each of probes
	probes   []string             // features or questions, "" if there is none
	exported string
}

func (p page) functions(t *testing.T) []function {
	t.Helper()
	var functions []function
	for _, row := range table(t, "../../docs/"+p.file, "function", "ours", "rxe", "siw", "asked by", "exported") {
		if len(row) != 6 || slices.Contains(row, "") {
			t.Fatalf("cells are missing or empty: %q", row)
		}
		f := function{name: row[0], ours: row[1], exported: row[5], answers: map[string][]answers{}}
		for probe := range strings.SplitSeq(row[4], "; ") {
			f.probes = append(f.probes, strings.Trim(probe, "-"))
		}
		for driver, cell := range map[string]string{"rxe": row[2], "siw": row[3]} {
			for part := range strings.SplitSeq(cell, "; ") {
				a, err := parseAnswers(part)
				if err != nil {
					t.Fatalf("%s, %s: %v", f.name, driver, err)
				}
				f.answers[driver] = append(f.answers[driver], a)
			}
			switch n := len(f.answers[driver]); {
			case n == 1: // it applies to all
				f.answers[driver] = slices.Repeat(f.answers[driver], len(f.probes))
			case n != len(f.probes):
				t.Fatalf("%s, %s: %d answers to %d probes", f.name, driver, n, len(f.probes))
			}
		}
		functions = append(functions, f)
	}
	return functions
}

var (
	quoted      = regexp.MustCompile("`([^`]*)`")
	opcodeName  = regexp.MustCompile(`^uverbs\.Op[A-Z]|^abi\.IB_UVERBS_WR_`)
	exportedHow = regexp.MustCompile(`^(1\.\d+|inline( \d+)?|private)$`)
)

// names returns the names in backquotes in the row.
func (f function) names() (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(f.ours, -1) {
		names = append(names, m[1])
	}
	return names
}

func (f function) needsNoCall() bool { return strings.HasPrefix(f.ours, "needs no call: ") }
func (f function) refused() bool {
	return f.ours == "refused" || strings.HasPrefix(f.ours, "refused: ")
}

// TestPages checks what can be checked without a kernel.
func TestPages(t *testing.T) {
	known := exported(t, ".", "uverbs", "cm", "provider", "mmap", "abi")
	for _, p := range pages {
		t.Run(p.file, func(t *testing.T) {
			all := p.functions(t)
			if !slices.IsSortedFunc(all, func(a, b function) int { return strings.Compare(a.name, b.name) }) {
				t.Error("the table is not sorted")
			}
			seen := map[string]bool{}
			for _, f := range all {
				if seen[f.name] {
					t.Errorf("%s: twice", f.name)
				}
				seen[f.name] = true
				f.check(t, known)
			}
		})
	}
}

// check checks one row.
func (f function) check(t *testing.T, known symbols) {
	names := f.names()
	for _, name := range names {
		if !known[name] {
			t.Errorf("%s: there is no exported %s", f.name, name)
		}
		if _, ok := opcodes[name]; !ok && opcodeName.MatchString(name) {
			t.Errorf("%s: %s is not posted by TestKernel", f.name, name)
		}
	}
	if len(names) == 0 && !f.needsNoCall() && !f.refused() {
		t.Errorf("%s: %q is no Go name, and not a reason for having none", f.name, f.ours)
	}
	if !exportedHow.MatchString(f.exported) {
		t.Errorf("%s: exported %q", f.name, f.exported)
	}
	for _, probe := range f.probes {
		if probe != "" && !answerable(probe) {
			t.Errorf("%s: there is no feature or question %q", f.name, probe)
		}
	}
	f.checkAnswers(t)
}

// checkAnswers checks that the answers are consistent.
func (f function) checkAnswers(t *testing.T) {
	for driver, parts := range f.answers {
		for i, a := range parts {
			for _, since := range a {
				switch none := since.answer == "-"; {
				case none != f.needsNoCall():
					t.Errorf("%s, %s: %q of a function of which the page says %q", f.name, driver, since.answer, f.ours)
				case f.refused() && since.answer == "yes":
					t.Errorf("%s, %s: it works, but we have it not", f.name, driver)
				case f.probes[i] == "" && !slices.Contains([]string{"yes", "-", "ErrOpcode", "never"}, since.answer):
					t.Errorf("%s, %s: %s is to be seen nowhere", f.name, driver, since.answer)
				}
			}
		}
	}
}
