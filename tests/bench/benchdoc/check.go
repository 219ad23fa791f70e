package main

import (
	"fmt"
	"io"

	"github.com/goverbs/verbs/tests/bench/record"
)

// mostMore is the part by which a figure may exceed the recorded one.
const mostMore = 0.05

// check compares Go's figure of each line in dir, where the tests left them, with the
// recorded one. Less is better. It fails if one has increased by more than mostMore.
func check(docs, part, dir string, w io.Writer) error {
	recorded, err := record.Read(figures(docs))
	if err != nil {
		return err
	}
	now, err := record.Collect(dir, part)
	if err != nil {
		return err
	}
	before := map[string]float64{}
	for _, l := range recorded[part].Lines {
		before[l.Key()] = l.Ours.Median()
	}
	compared, more := 0, 0
	for _, l := range now.Lines {
		was := before[l.Key()]
		if was == 0 {
			continue
		}
		compared++
		change, note := l.Ours.Median()/was-1, ""
		if change > mostMore {
			more++
			note = "  <- more"
		}
		fmt.Fprintf(w, "%-5s %-13s %6.1f %s, was %6.1f: %+.1f %%%s\n", l.Device, l.Name, l.Ours.Median(), l.Unit, was, 100*change, note)
	}
	again := fmt.Sprintf("go run ./tests/bench/benchdoc %s %s", part, dir)
	switch {
	case compared == 0:
		return fmt.Errorf("nothing in %s is among the figures in %s: record them with %s", dir, figures(docs), again)
	case more > 0:
		return fmt.Errorf("%d of %d figures are more than %.0f %% above those recorded: make them as good again, or record them with %s", more, compared, 100*mostMore, again)
	}
	return nil
}
