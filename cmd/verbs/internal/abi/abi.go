// Package abi implements verbs abi, which compares the structures shared with the kernel.
package abi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/internal/abicheck"
)

// Cmd is verbs abi, for kong.
type Cmd struct {
	JSON bool `help:"Print JSON."`
	All  bool `help:"Also list the structures that are the same."`
}

func (c *Cmd) Help() string {
	return `It compares with the types in /sys/kernel/btf, and needs no RDMA device.

Examples:

  verbs abi                show the structures that differ
  verbs abi --all          show all
  verbs abi --json`
}

func (c *Cmd) Run() error {
	k, err := abicheck.Open()
	if err != nil {
		return err
	}
	results := k.Used()
	if c.JSON {
		err = cli.WriteJSON(os.Stdout, results)
	} else {
		err = c.print(os.Stdout, results)
	}
	return errors.Join(err, breaks(results))
}

// print prints a table of the structures that differ, or of all, and a summary.
func (c *Cmd) print(out io.Writer, results []abicheck.Result) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	counts := map[abicheck.Status]int{}
	rows := 0
	for _, r := range results {
		counts[r.Status]++
		if r.Status == abicheck.Same && !c.All {
			continue
		}
		if rows++; rows == 1 {
			fmt.Fprintln(w, "STRUCTURE\tKERNEL\tUSED FOR\tEFFECT")
		}
		effect := "none"
		switch {
		case r.Breaks:
			effect = "breaks: " + r.Why
		case r.Why != "":
			effect = "works: " + r.Why
		}
		if r.Status == abicheck.Unknown {
			effect = "not known: " + r.Why
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", strings.TrimPrefix(r.Type, "struct "), r.Status, r.Feature, effect)
		for _, m := range r.Moved {
			fmt.Fprintf(w, "  %s\t\t\t\n", m)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if rows > 0 {
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintf(out, "%d structures are shared with the kernel: %d the same, %d have more members there and %d fewer, %d differ, %d are not known.\n",
		len(results), counts[abicheck.Same], counts[abicheck.Newer], counts[abicheck.Older], counts[abicheck.Differs], counts[abicheck.Unknown])
	return err
}

// breaks returns an error if a feature does not work on this kernel.
func breaks(results []abicheck.Result) error {
	var broken []string
	for _, r := range results {
		if r.Breaks {
			broken = append(broken, fmt.Sprintf("%s (%s)", r.Feature, r.Type))
		}
	}
	if broken == nil {
		return nil
	}
	return fmt.Errorf("incompatible kernel ABI: %s", strings.Join(broken, ", "))
}
