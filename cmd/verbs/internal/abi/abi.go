// Package abi implements verbs abi, which compares the structures shared with the kernel.
package abi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/goverbs/verbs/cmd/verbs/internal/abicheck"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs abi, for kong.
type Cmd struct {
	JSON bool `help:"Print JSON."`
	All  bool `help:"Also list the structures that are the same."`
}

func (c *Cmd) Help() string {
	return `Compares with the types in /sys/kernel/btf; works without an RDMA device.

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
	switch {
	case c.JSON:
		err = cli.WriteJSON(os.Stdout, results)
	case c.All || !unknown(results):
		err = c.print(os.Stdout, results)
	}
	if unknown(results) {
		return errors.Join(err, errUnknown)
	}
	return errors.Join(err, breaks(results))
}

var errUnknown = errors.New("this kernel's types in /sys/kernel/btf have no InfiniBand: it is not built in, or its modules are not loaded")

// unknown reports whether nothing of InfiniBand is known; structures of the network may be.
func unknown(results []abicheck.Result) bool {
	return !slices.ContainsFunc(results, func(r abicheck.Result) bool {
		return r.Status != abicheck.Unknown && strings.HasPrefix(r.Type, "struct ib_uverbs_")
	})
}

// print prints a table of the structures that differ, or of all, and a summary.
func (c *Cmd) print(out io.Writer, results []abicheck.Result) error {
	counts := map[abicheck.Status]int{}
	for _, r := range results {
		counts[r.Status]++
	}
	shown := slices.DeleteFunc(slices.Clone(results), func(r abicheck.Result) bool { return r.Status == abicheck.Same && !c.All })
	if len(shown) > 0 {
		err := cli.List(out, false, shown, []string{"STRUCTURE", "KERNEL", "USED FOR", "EFFECT"}, func(r abicheck.Result) []any {
			effect := "none"
			switch {
			case r.Status == abicheck.Unknown:
				effect = "not known: " + r.Why
			case r.Breaks:
				effect = "breaks: " + r.Why
			case r.Why != "":
				effect = "works: " + r.Why
			}
			return []any{strings.TrimPrefix(r.Type, "struct "), r.Status, r.Feature, strings.Join(append([]string{effect}, r.Moved...), "; ")}
		})
		if err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	text := fmt.Sprintf("%d structures are shared with the kernel: %d the same, %d have more members there and %d fewer, %d differ, %d are not known.",
		len(results), counts[abicheck.Same], counts[abicheck.Newer], counts[abicheck.Older], counts[abicheck.Differs], counts[abicheck.Unknown])
	_, err := fmt.Fprintln(out, cli.Wrap("", text, cli.Width(out), ""))
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
