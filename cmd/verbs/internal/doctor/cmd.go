// Package doctor is verbs doctor: it checks what RDMA programs need, and describes what to do
// about missing ones.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// Cmd is verbs doctor, for kong.
type Cmd struct {
	Device string `arg:"" optional:"" placeholder:"DEVICE" help:"Name of a device; all by default."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Cmd) Help() string {
	return `Checks the kernel's modules, the device nodes and their permissions, the limit of locked
memory, network namespaces, the state, GIDs and addresses of each device, and that a
connection from each device to itself carries data. Each finding comes with its remedy. The
exit status is 1 if RDMA or a device cannot be used, or if the checks were
interrupted. With VERBS_SOFT set, doctor checks only the device in user space.

Examples:

  verbs doctor
  verbs doctor rxe0
  verbs doctor --json`
}

func (c *Cmd) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

// The errors of runs whose findings have been printed.
var (
	errProblems    = errors.New("RDMA cannot be used: see the problems above")
	errInterrupted = errors.New("interrupted: the findings above are incomplete")
)

func (c *Cmd) run(ctx context.Context, w io.Writer) error {
	p := newPatient()
	p.examine(ctx, c.Device)
	findings := p.findings
	problems := false
	for _, f := range findings {
		problems = problems || f.Level == Problem
	}
	if c.JSON {
		if err := cli.WriteJSON(w, findings); err != nil {
			return err
		}
	} else {
		out := &cli.Output{W: w}
		for _, f := range findings {
			line := func(head, text string) {
				fmt.Fprintln(out, cli.Wrap(fmt.Sprintf("%-8s  ", head), cli.Printable(text), cli.Width(w), "            "))
			}
			line(string(f.Level), f.Subject+": "+f.Text)
			if f.Remedy != "" {
				line("", "→ "+f.Remedy)
			}
		}
		if out.Err != nil {
			return out.Err
		}
	}
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case problems:
		return errProblems
	}
	return nil
}

// Level is how bad a finding is.
type Level string

const (
	OK      Level = "ok"
	Note    Level = "note"    // something that some programs lack
	Problem Level = "problem" // something without which RDMA, or a device, cannot be used
)

// Finding is the result of a check.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // "kernel", "rxe0", "rxe0, port 1"
	Text    string `json:"text"`
	Remedy  string `json:"remedy,omitempty"`
}
