// Command benchdoc writes the tables of docs/benchmarks.md and its plot, from the figures of
// every pair in docs/benchmarks.json.
//
//	benchdoc                     # writes the tables and the plot again
//	benchdoc lab build/bench     # first records what the tests left in build/bench: it
//	                             # replaces the figures of that part
//	benchdoc check counted build/bench-quick
//	                             # compares with the recorded figures instead
//
// make bench, bench-native, bench-mlx5 and bench-quick run it.
package main

import (
	"fmt"
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
		log.Fatal("usage: benchdoc [[check] lab|native|adapter|counted folder]")
	}
	if err != nil {
		log.Fatal(err)
	}
}

// figures returns the name of the file of all figures.
func figures(docs string) string { return filepath.Join(docs, "benchmarks.json") }

// collect replaces the figures of a part by those that tests left in dir.
func collect(docs, of, dir string) error {
	all, err := record.Read(figures(docs))
	if err != nil {
		return err
	}
	run, err := record.Collect(dir, of)
	if err != nil {
		return err
	}
	if run.Host, err = record.Processor(); err != nil {
		return err
	}
	if version, err := exec.Command("dpkg-query", "-W", "-f", "${Version}", "libibverbs1").Output(); err == nil {
		run.RDMA = string(version)
	}
	all[of] = run
	return all.Write(figures(docs))
}

// The lines of the page around the tables.
const (
	begin = "<!-- written by make bench -->\n"
	end   = "<!-- end -->\n"
)

// write writes the tables and the plot.
func write(docs string) error {
	all, err := record.Read(figures(docs))
	if err != nil {
		return err
	}
	file := filepath.Join(docs, "benchmarks.md")
	page, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no place for the tables", file)
	}
	if err := os.WriteFile(file, []byte(before+begin+tables(all)+end+after), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(docs, "benchmarks.svg"), plot(all), 0o644)
}
