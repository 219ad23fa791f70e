// Package doctor is verbs doctor: it checks what RDMA programs need, and describes what to do
// about what is missing.
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
	Device string `arg:"" optional:"" help:"Name of a device; all by default."`
	JSON   bool   `help:"Print JSON."`
}

func (c *Cmd) Help() string {
	return `Checks the kernel's modules, the device nodes and their permissions, the limit of locked
memory, network namespaces, the state, GIDs and addresses of each device, and that a
connection from each device to itself carries data. Each finding comes with its remedy. The
exit status is 1 if RDMA cannot be used, or a device cannot. With VERBS_SOFT set, only the
device in user space is checked.

Examples:

  verbs doctor
  verbs doctor rxe0
  verbs doctor --json`
}

func (c *Cmd) Run(ctx context.Context) error { return c.run(ctx, os.Stdout) }

// errProblems is the error of a run that found problems, which have been printed.
var errProblems = errors.New("RDMA cannot be used as it is: see the problems above")

func (c *Cmd) run(ctx context.Context, w io.Writer) error {
	findings := examine(ctx, c.Device)
	problems := false
	for _, f := range findings {
		problems = problems || f.Level == Problem
	}
	if c.JSON {
		if err := cli.WriteJSON(w, findings); err != nil {
			return err
		}
	} else {
		for _, f := range findings {
			fmt.Fprintf(w, "%-8s  %s: %s\n", f.Level, f.Subject, f.Text)
			if f.Remedy != "" {
				fmt.Fprintf(w, "          → %s\n", f.Remedy)
			}
		}
	}
	if problems {
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
