package record

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	lines := []Line{
		{Group: "set-up", Device: "rxe0", Name: "b", Unit: "µs", Beside: "C", Ours: flat(1.0/3, 9), C: flat(2, 9)},
		{Group: "latency", Device: "siw0", Name: "a", Unit: "µs", Higher: true, Beside: "C", Ours: flat(1, 9)},
		{Group: "set-up", Name: "a", Unit: "MiB", Beside: "C", Ours: flat(1, 9), Spread: &Spread{Ours: NewHistogram(Sample{1, 2})}},
	}
	for _, l := range lines {
		labtest.Check(t, Append(dir, l))
	}
	r := labtest.Must(Collect(dir, Lab))(t)
	if want := []Line{lines[1], lines[0], lines[2]}; !reflect.DeepEqual(r.Lines, want) {
		t.Errorf("collected %v", r.Lines)
	}
	if r.Kernel == "" || r.CPUs == 0 || r.Machine == "" {
		t.Errorf("origin %+v", r.Origin)
	}
	if _, err := time.Parse(time.DateOnly, r.Date); err != nil {
		t.Error(err)
	}

	r.Host = "somewhere"
	text := labtest.Must(r.Text())(t)
	file := filepath.Join(dir, "lab.json")
	labtest.Check(t, os.WriteFile(file, text, 0o644))
	if again, err := Read(file, Lab); err != nil || !reflect.DeepEqual(again, r) {
		t.Errorf("wrote %v, read %v, %v", r, again, err)
	}
	if _, err := Read(file, Native); err == nil {
		t.Error("a part's file was taken for another's")
	}
	if none, err := Read(file+"x", Lab); err != nil || len(none.Lines) != 0 {
		t.Errorf("no file gave %v, %v", none, err)
	}
}

// TestEmptyRun writes and reads a run without lines.
func TestEmptyRun(t *testing.T) {
	dir := t.TempDir()
	r, err := Collect(dir, Lab)
	if err != nil || len(r.Lines) != 0 {
		t.Fatal(r, err)
	}
	text := labtest.Must(r.Text())(t)
	file := filepath.Join(dir, "lab.json")
	labtest.Check(t, os.WriteFile(file, text, 0o644))
	if r, err := Read(file, Lab); err != nil || len(r.Lines) != 0 {
		t.Errorf("%v, %v", r, err)
	}
}

func TestCollectRefuses(t *testing.T) {
	const one = `{"kernel":"6.12","machine":"m","cpus":2,"date":"2026-01-01","group":"set-up","name":"a","ours":[1]}` + "\n"
	for _, test := range []struct{ name, text, want string }{
		{"the same twice", one + one, "twice"},
		{"two kernels", one + strings.NewReplacer("6.12", "6.1", `"a"`, `"b"`).Replace(one), "others on"},
		{"two machines", one + strings.NewReplacer(`"m"`, `"n"`, `"a"`, `"b"`).Replace(one), "others on"},
		{"another part", strings.Replace(one, "set-up", "allocations", 1), "no group of the part lab"},
		{"no group", strings.Replace(one, "set-up", "x", 1), "no group"},
		{"half a line", one + one[:20], "unexpected EOF"},
	} {
		dir := t.TempDir()
		labtest.Check(t, os.WriteFile(filepath.Join(dir, linesFile), []byte(test.text), 0o644))
		if _, err := Collect(dir, Lab); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	dir := t.TempDir()
	labtest.Check(t, os.WriteFile(filepath.Join(dir, linesFile), []byte(one+strings.NewReplacer("01-01", "01-02", `"a"`, `"b"`).Replace(one)), 0o644))
	if r, err := Collect(dir, Lab); err != nil || r.Date != "2026-01-01" {
		t.Errorf("a run past midnight: %v, %v", r.Date, err)
	}
}

func TestMissingLines(t *testing.T) {
	g := Group{Name: "g", Lines: []string{"a", "b"}, RXE: []string{"c"}, Anyhow: []string{"d"}}
	r := Run{Lines: []Line{
		{Group: "g", Device: "rxe0", Name: "b", Ours: Sample{1}},
		{Group: "g", Device: "rxe0", Name: "more", Ours: Sample{1}},
		{Group: "h", Device: "rxe0", Name: "a", Ours: Sample{1}},
	}}
	var got []string
	for _, l := range r.Of(g) {
		got = append(got, fmt.Sprint(l.Device, " ", l.Name, " ", len(l.Ours)))
	}
	want := []string{" d 0", "rxe0 a 0", "rxe0 b 1", "rxe0 c 0", "siw0 a 0", "siw0 b 0", "rxe0 more 1"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestGroups checks that names of groups and of their lines are unique.
func TestGroups(t *testing.T) {
	names, works := map[string]bool{}, map[string]bool{}
	for _, g := range Groups {
		if names[g.Name] || works[g.Work] || g.Work == "" || !slices.Contains([]string{Lab, Native, Counted}, g.Part) {
			t.Errorf("%+v", g)
		}
		names[g.Name], works[g.Work] = true, true
		known := map[string]bool{}
		for _, l := range g.Expected() {
			if known[l.Key()] || !g.Has(l) {
				t.Errorf("%s: twice", l.Key())
			}
			known[l.Key()] = true
		}
		if len(known) == 0 {
			t.Errorf("nothing belongs to %s", g.Name)
		}
	}
	for _, name := range []string{"latency, events, garbage collection, 99.9th percentile", "set-up, event by event, counted"} {
		if _, ok := Find(name); !ok {
			t.Errorf("there is no group %q", name)
		}
	}
}
