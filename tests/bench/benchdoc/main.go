// Command benchdoc writes docs/benchmarks.md, and docs/benchmarks: plots of each group of
// lines, and the figures themselves.
//
//	benchdoc                     # writes the page and the plots again
//	benchdoc lab build/bench     # first writes docs/benchmarks/lab.json from the
//	                             # records of the tests in build/bench
//	benchdoc check counted build/bench-quick
//	                             # compares records with the recorded figures
//
// make bench, bench-native, bench-counted and bench-quick run it. The page is made only from
// the files of figures and from notes.md, which is written by hand.
package main

import (
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/tests/bench/record"
)

const docs = "docs"

func main() {
	log.SetFlags(0)
	err := error(nil)
	switch len(os.Args) {
	case 1:
		err = write(docs)
	case 3:
		if err = collect(docs, os.Args[1], os.Args[2]); err == nil {
			err = write(docs)
		}
	case 4:
		err = check(docs, os.Args[2], os.Args[3], os.Stdout)
	default:
		log.Fatal("usage: benchdoc [[check] lab|native|counted folder]")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// collect writes a part's file of figures from the records of its tests in dir. The file
// contains only what these tests measured.
func collect(docs, part, dir string) error {
	run, err := record.Collect(dir, part)
	if err != nil {
		return err
	}
	if run.Host, err = record.Processor(); err != nil {
		return err
	}
	version, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "libibverbs1").Output()
	if err != nil {
		return err
	}
	run.RDMA = string(version)
	text, err := run.Text()
	if err != nil {
		return err
	}
	return os.WriteFile(figures(docs, part), text, 0o644)
}

// figures returns the name of the file of a part's figures.
func figures(docs, part string) string { return filepath.Join(docs, "benchmarks", part+".json") }

// render returns the page and the plots: their text by the name of the file in docs.
func render(docs string) (map[string][]byte, error) {
	runs := map[string]record.Run{}
	for _, part := range []string{record.Native, record.Lab, record.Counted} {
		run, err := record.Read(figures(docs, part), part)
		if err != nil {
			return nil, err
		}
		runs[part] = run
	}
	notes, err := os.ReadFile(filepath.Join(docs, "benchmarks", "notes.md"))
	if err != nil {
		return nil, err
	}
	files := map[string][]byte{}
	plots := map[string][]string{}
	for _, g := range record.Groups {
		name := "benchmarks/" + strings.NewReplacer(", ", "-", " ", "-").Replace(strings.ToLower(g.Name))
		for _, kind := range []struct {
			name string
			draw func(record.Group, []record.Line) ([]byte, error)
		}{{name + ".svg", newForest}, {name + "-histogram.svg", histograms}} {
			svg, err := kind.draw(g, runs[g.Part].Of(g))
			if err != nil {
				return nil, err
			}
			if svg != nil {
				files[kind.name] = svg
				plots[g.Name] = append(plots[g.Name], kind.name)
			}
		}
	}
	files["benchmarks.md"] = page(runs, plots, string(notes))
	return files, nil
}

// write writes the files that render returns, and removes plots of earlier runs.
func write(docs string) error {
	files, err := render(docs)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(filepath.Join(docs, "benchmarks", "*.svg"))
	if err != nil {
		return err
	}
	for _, f := range old {
		if err := os.Remove(f); err != nil {
			return err
		}
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(docs, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
