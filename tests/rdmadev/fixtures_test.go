package rdmadev

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/rdmadev"
)

var update = flag.Bool("update", false, "write what is read to the golden files")

// TestFixtures reads devices that the lab does not have, from copies of their files in sysfs
// that were collected from public sources, which each copy names. What is read is compared
// with a golden file.
func TestFixtures(t *testing.T) {
	files := labtest.Must(filepath.Glob("testdata/*.txtar"))(t)
	if len(files) == 0 {
		t.Fatal("there are no fixtures")
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txtar")
		t.Run(name, func(t *testing.T) {
			archive := labtest.Must(txtar.ParseFile(file))(t)
			if !source.Match(archive.Comment) {
				t.Error("it names no source")
			}
			root := t.TempDir()
			for _, f := range archive.Files {
				extract(t, root, f)
			}
			got := describe(t, rdmadev.Source{Sys: filepath.Join(root, "sys")}, root)
			golden := filepath.Join("testdata", name+".golden")
			if *update {
				labtest.Check(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			if want := labtest.Must(os.ReadFile(golden))(t); got != string(want) {
				t.Errorf("read\n%s\nwant\n%s", got, want)
			}
		})
	}
}

var (
	source  = regexp.MustCompile(`(?mi)^# *(S1|1|source)\b`)
	series  = regexp.MustCompile(`^(.*/)(\d+)\.\.(\d+)((?: ! \w+)?)$`)
	failing = regexp.MustCompile(`^(.*) ! (\w+)$`)
)

// extract creates a file of an archive. Its name may be a series, a/0..255, a symbolic link,
// a -> b, or one that cannot be read, a ! EINVAL: a folder stands for that.
func extract(t *testing.T, root string, f txtar.File) {
	t.Helper()
	if m := series.FindStringSubmatch(f.Name); m != nil {
		first, last := labtest.Must(strconv.Atoi(m[2]))(t), labtest.Must(strconv.Atoi(m[3]))(t)
		for i := first; i <= last; i++ {
			extract(t, root, txtar.File{Name: m[1] + strconv.Itoa(i) + m[4], Data: f.Data})
		}
		return
	}
	name, target, link := strings.Cut(f.Name, " -> ")
	m := failing.FindStringSubmatch(name)
	if m != nil {
		name = m[1]
	}
	path := filepath.Join(root, name)
	labtest.Check(t, os.MkdirAll(filepath.Dir(path), 0o755))
	switch {
	case link:
		labtest.Check(t, os.Symlink(target, path))
	case m != nil:
		labtest.Check(t, os.MkdirAll(path, 0o755))
	default:
		labtest.Check(t, os.WriteFile(path, f.Data, 0o644))
	}
}

// describe prints everything that a source shows.
func describe(t *testing.T, s rdmadev.Source, root string) string {
	var b strings.Builder
	failed := func(indent string, errs ...error) {
		for _, err := range errs {
			if err != nil {
				fmt.Fprintf(&b, "%serror: %s\n", indent, strings.ReplaceAll(err.Error(), root, ""))
			}
		}
	}
	for _, d := range labtest.Must(s.Devices())(t) {
		fmt.Fprintf(&b, "%s: %v %s, GUIDs %v %v, %q, firmware %q, board %q, revision %q, model %q\n",
			d.Name, d.Type, d.Protocol, d.NodeGUID, d.SystemGUID, d.Description, d.Firmware, d.Board, d.HardwareRev, d.Model)
		fmt.Fprintf(&b, "\tdriver %q, node %q, NUMA %d, PCI %+v\n", d.Driver, d.VerbsNode, d.NUMANode, d.PCI)
		failed("\t", d.Errs...)
		for _, p := range d.Ports {
			fmt.Fprintf(&b, "\tport %d: %v %v %v, %d Mb/s %d lanes %q, LIDs %d %d, LMC %d, SL %d, %#x, interfaces %q\n",
				p.Num, p.State, p.PhysState, p.LinkLayer, p.Rate, p.Lanes, p.Speed, p.LID, p.SMLID, p.LMC, p.SMSL, p.CapFlags, p.Interfaces)
			failed("\t\t", p.Errs...)
			gids, err := p.GIDs()
			failed("\t\t", err)
			for _, g := range gids {
				fmt.Fprintf(&b, "\t\tGID %d: %v %v %q\n", g.Index, g.GID, g.Type, g.Interface)
			}
			keys, err := p.PKeys()
			failed("\t\t", err)
			if keys != nil {
				fmt.Fprintf(&b, "\t\tP_Keys %#x\n", keys)
			}
			counters, err := p.Counters()
			failed("\t\t", err)
			for _, c := range counters {
				kind, limit := "", ""
				if c.Hardware {
					kind = "hardware "
				}
				if c.Max != 0 {
					limit = fmt.Sprintf(" of %d", c.Max)
				}
				fmt.Fprintf(&b, "\t\t%scounter %s: %d%s %s\n", kind, c.Name, c.Value, limit, c.Unit)
			}
		}
	}
	return b.String()
}
