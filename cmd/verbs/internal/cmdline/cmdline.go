// Package cmdline is the command verbs, for its main package and for programs that have drivers of other
// modules. It lists, inspects and tests RDMA devices.
package cmdline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	root "github.com/goverbs/verbs"
	"github.com/goverbs/verbs/cmd/verbs/internal/abi"
	"github.com/goverbs/verbs/cmd/verbs/internal/cat"
	"github.com/goverbs/verbs/cmd/verbs/internal/check"
	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
	"github.com/goverbs/verbs/cmd/verbs/internal/demo"
	"github.com/goverbs/verbs/cmd/verbs/internal/dev"
	"github.com/goverbs/verbs/cmd/verbs/internal/doctor"
	"github.com/goverbs/verbs/cmd/verbs/internal/info"
	"github.com/goverbs/verbs/cmd/verbs/internal/perf"
	"github.com/goverbs/verbs/cmd/verbs/internal/ping"
	"github.com/goverbs/verbs/cmd/verbs/internal/shell"
)

type commands struct {
	Version kong.VersionFlag `help:"Print the version."`

	Devices    dev.Devices      `cmd:"" help:"List RDMA devices, their ports and addresses."`
	Info       info.Cmd         `cmd:"" help:"Show what devices can do."`
	Ports      dev.Ports        `cmd:"" help:"Show the ports of devices of any driver."`
	Counters   dev.Counters     `cmd:"" help:"Show counters, or how fast they grow."`
	Res        dev.Res          `cmd:"" help:"Show resources and their owners."`
	Conns      dev.Conns        `cmd:"" help:"Show the connections of a program, and what each waits for."`
	Stat       dev.Stat         `cmd:"" help:"Show statistics of ports, QPs and MRs, and set how QPs are counted."`
	Link       dev.Link         `cmd:"" help:"Create, remove, rename and move devices, which requires CAP_NET_ADMIN."`
	Monitor    dev.Monitor      `cmd:"" help:"Print changes to devices and ports."`
	Doctor     doctor.Cmd       `cmd:"" help:"Check what RDMA programs need, and show remedies."`
	Check      check.Cmd        `cmd:"" help:"Check and measure a device, in loopback and with a peer, for a report."`
	ABI        abi.Cmd          `cmd:"" name:"abi" help:"Compare the structures that programs and this kernel exchange, and show the effect of differences."`
	Demo       demo.Cmd         `cmd:"" help:"Connect a client to a server, write and read its memory, and compare."`
	Ping       ping.Cmd         `cmd:"" help:"Exchange data with a peer, or with rping."`
	Cat        cat.Cmd          `cmd:"" help:"Join the standard input and output with a connection of rsockets."`
	Perf       perf.Cmd         `cmd:"" help:"Measure latency and bandwidth, as perftest's programs do."`
	Completion shell.Completion `cmd:"" help:"Print a script that completes command lines."`
	Man        shell.Man        `cmd:"" help:"Print the manual page."`
	Words      shell.Words      `cmd:"" hidden:""`
}

// Help returns the rule for the output and the exit status of all commands.
func (c *commands) Help() string {
	return `Results go to standard output; errors, warnings and progress to standard error. With
--json the output is one JSON value. Commands that run until interrupted (monitor,
counters --watch, ping -s and perf server) print one value a line. The output is empty if
the command fails before it has a result.

The exit status is 0 for success, 1 if the command failed or its answer is no (no
device, a problem that doctor found, a limit of perf that was missed), and 2 for a
mistake in the command line. Interrupting a command that runs until interrupted is success.`
}

// Main runs the command line of the process, and ends it.
func Main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := Run(ctx, os.Stdout, os.Stderr, os.Args[1:])
	stop()
	os.Exit(status)
}

// NewParser returns the parser of command lines.
func NewParser(ctx context.Context, stdout, stderr io.Writer, exit func(int)) (*kong.Kong, error) {
	k, err := kong.New(new(commands),
		kong.Name("verbs"),
		kong.Description("RDMA from Go, without cgo or rdma-core."),
		kong.Vars{"pingMin": strconv.Itoa(ping.MinSize), "version": version()},
		kong.Writers(stdout, stderr),
		kong.Exit(exit),
		kong.BindTo(ctx, (*context.Context)(nil)))
	if err != nil {
		return nil, err
	}
	for _, leaf := range k.Model.Leaves(false) { // kong does so in the first line only
		leaf.Detail = strings.ReplaceAll(leaf.Detail, "${op}", leaf.Vars()["op"])
	}
	return k, nil
}

// Run runs a command line and returns the exit status.
func Run(ctx context.Context, stdout, stderr io.Writer, args []string) (status int) {
	exited := false // after --help and --version
	parser, err := NewParser(ctx, stdout, stderr, func(int) { exited = true })
	if err != nil {
		panic(err) // the tags of the commands are wrong
	}
	k, err := parser.Parse(args)
	if exited {
		return 0
	}
	path := "verbs"
	if err == nil {
		path = k.Selected().FullPath()
		err = k.Run()
		if err == nil {
			return 0
		}
	} else if perr, ok := errors.AsType[*kong.ParseError](err); ok {
		if selected := perr.Context.Selected(); selected != nil {
			path = selected.FullPath()
		}
		err = cli.Usage(err)
	}
	cli.Warn(stderr, err)
	if _, ok := errors.AsType[*cli.UsageError](err); ok {
		fmt.Fprintf(stderr, "Run %q for help.\n", path+" --help")
		return 2
	}
	return 1
}

// version returns the version, and how the program was built.
func version() string {
	text := fmt.Sprintf("verbs %s, %s, %s/%s", root.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return text
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			text += ", commit " + s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			text += " and changes"
		}
	}
	return text
}
