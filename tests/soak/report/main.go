// Command report writes a report in Markdown, and a plot next to it, from the samples of a
// run. Its exit status is 1 if the run failed.
//
//	report [-status N] build/soak/rxe0.jsonl docs/soak/rxe0.md
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/tests/soak/samples"
)

func main() {
	status := flag.Int("status", 0, "exit status of the run: the lab fails one for the kernel's warnings, too")
	flag.Parse()
	reasons, err := report(flag.Arg(0), flag.Arg(1), *status)
	if err != nil {
		fmt.Fprintln(os.Stderr, "report:", err)
		os.Exit(2)
	}
	if len(reasons) > 0 {
		for _, r := range reasons {
			fmt.Fprintln(os.Stderr, firstLine(r))
		}
		os.Exit(1)
	}
}

// report writes the report and the plot. It returns the reasons why the run failed.
func report(from, to string, status int) (reasons []string, err error) {
	if from == "" || filepath.Ext(to) != ".md" {
		return nil, errors.New("usage: report [-status N] SAMPLES.jsonl REPORT.md")
	}
	f, err := os.Open(from)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	run, err := samples.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", from, err)
	}
	reasons = run.Verdict()
	if status != 0 && len(reasons) == 0 {
		reasons = []string{fmt.Sprintf("the run itself was well, but its exit status is %d: the kernel may have warned", status)}
	}
	picture := strings.TrimSuffix(to, ".md") + ".svg"
	if len(run.Samples) > 1 {
		if err := plot(picture, run); err != nil {
			return nil, err
		}
	}
	var b strings.Builder
	markdown(&b, run, reasons, filepath.Base(picture))
	return reasons, os.WriteFile(to, []byte(b.String()), 0o644)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
