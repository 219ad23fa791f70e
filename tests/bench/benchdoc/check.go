package main

import (
	"fmt"
	"io"

	"github.com/goverbs/verbs/tests/bench/record"
)

// mostLoss is the part of its recorded ratio that a line may lose.
const mostLoss = 0.05

// check compares the ratio of each line in dir, where the tests left them, with that in the
// part's figures. It fails if one has decreased by more than mostLoss.
func check(docs, part, dir string, w io.Writer) error {
	recorded, err := record.Read(figures(docs, part), part)
	if err != nil {
		return err
	}
	now, err := record.Collect(dir, part)
	if err != nil {
		return err
	}
	before := map[string]record.Ratio{}
	for _, l := range recorded.Lines {
		before[l.Key()], _ = l.Compare()
	}
	compared, lost := 0, 0
	for _, l := range now.Lines {
		r, _ := l.Compare()
		was := before[l.Key()]
		if r.Mean == 0 || was.Mean == 0 {
			continue
		}
		compared++
		change := r.Mean/was.Mean - 1
		note := ""
		if change < -mostLoss {
			lost++
			note = "  <- lost"
		}
		fmt.Fprintf(w, "%-70s ratio %.3f, was %.3f, %+.1f %%%s\n", l.Key(), r.Mean, was.Mean, 100*change, note)
	}
	switch {
	case compared == 0:
		return fmt.Errorf("nothing in %s is among the figures of %s: run make bench-%s first", dir, figures(docs, part), part)
	case lost > 0:
		return fmt.Errorf("%d of %d lines lost more than %.0f %%: make them as good again, or record the new figures with make bench-%s", lost, compared, 100*mostLoss, part)
	}
	return nil
}
