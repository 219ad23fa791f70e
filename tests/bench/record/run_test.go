package record

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
)

func TestRun(t *testing.T) {
	dir := t.TempDir()
	lines := []Line{
		{Group: Streams, Device: "rxe0", Name: "echo of 8 bytes", Unit: "µs", Beside: "TCP", Ours: flat(1.0/3, 9), C: flat(2, 9)},
		{Group: Connections, Device: "siw0", Name: "set-ups, one at a time", Unit: "/s", Higher: true, Beside: "C", Ours: flat(1, 9)},
		{Group: Streams, Device: "rxe0", Name: "echo of 8 bytes", Unit: "µs", Beside: "rsockets", Ours: flat(1, 9)},
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
	file := filepath.Join(dir, "all.json")
	if none, err := Read(file); err != nil || len(none) != 0 {
		t.Errorf("no file gave %v, %v", none, err)
	}
	all := Results{Lab: r, Native: {Origin: r.Origin}}
	labtest.Check(t, all.Write(file))
	if again, err := Read(file); err != nil || !reflect.DeepEqual(again, all) {
		t.Errorf("wrote %v, read %v, %v", all, again, err)
	}
}

func TestCollectRefuses(t *testing.T) {
	const one = `{"kernel":"6.12","machine":"m","cpus":2,"date":"2026-01-01","group":"Latency","name":"a","ours":[1]}` + "\n"
	for _, test := range []struct{ name, text, want string }{
		{"the same twice", one + one, "twice"},
		{"two kernels", one + strings.NewReplacer("6.12", "6.1", `"a"`, `"b"`).Replace(one), "others on"},
		{"two machines", one + strings.NewReplacer(`"m"`, `"n"`, `"a"`, `"b"`).Replace(one), "others on"},
		{"another part", strings.Replace(one, "Latency", UserSpace, 1), "no group of the part lab"},
		{"no group", strings.Replace(one, "Latency", "x", 1), "no group"},
		{"half a line", one + one[:20], "unexpected EOF"},
	} {
		dir := t.TempDir()
		labtest.Check(t, os.WriteFile(filepath.Join(dir, linesFile), []byte(test.text), 0o644))
		if _, err := Collect(dir, Lab); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	dir := t.TempDir()
	if _, err := Collect(dir, Lab); err == nil {
		t.Error("collected nothing")
	}
	labtest.Check(t, os.WriteFile(filepath.Join(dir, linesFile), []byte(one+strings.NewReplacer("01-01", "01-02", `"a"`, `"b"`).Replace(one)), 0o644))
	if r, err := Collect(dir, Lab); err != nil || r.Date != "2026-01-01" {
		t.Errorf("a run past midnight: %v, %v", r.Date, err)
	}
}

// TestGroups checks that lines are unique, and that there are at most 40 for each driver.
func TestGroups(t *testing.T) {
	known, count := map[string]bool{}, map[string]int{}
	for _, g := range Groups {
		for _, w := range g.Works {
			for _, device := range w.Devices {
				l := Run{}.Find(g, w, device)
				if known[l.Key()] || !g.Has(l) {
					t.Errorf("%s: twice, or of no group", l.Key())
				}
				known[l.Key()] = true
				if g.Part != Counted {
					count[device]++
				}
			}
		}
	}
	if count["rxe0"] > 40 || count["siw0"] > 40 {
		t.Errorf("the lines by device: %v", count)
	}
}
