//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
)

// config describes a run.
type config struct {
	kernel, peer string
	arch         string
	suite        string // of the userland; the host's if empty
	write        string
	parallel     int
	host         bool
	all          bool // fetch all kernels
	nic          string
	socket       string
	options
}

var (
	commands     = []string{"run", "test", "fetch", "nic"}
	accelerators = []string{"kvm", "tcg", icountAccel, dilated}
)

// flags returns the flags that set c. Their defaults are c's values.
func (c *config) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("rdmalab", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints errors
	fs.Usage = func() {}
	c.kernel, c.arch, c.mem, c.factor, c.parallel = image.Kernels[0].Name, runtime.GOARCH, 2048, 40, -1
	fs.StringVar(&c.kernel, "kernel", c.kernel, "`name` of the kernel: "+strings.Join(image.Names(), ", ")+"; uml is User-mode Linux of about 7.3: its first use builds it for many minutes, later it boots in a second; programs run at full speed, but system calls are slow, and modules, BPF and cgroups are missing; 16k kernels, for arm64, have pages of 16 KiB")
	fs.StringVar(&c.peer, "peer", "", "`name` of the kernel of a second machine, which runs the program as well (default none)")
	fs.StringVar(&c.arch, "arch", c.arch, "`name` of the architecture: "+strings.Join(image.ArchNames(), ", ")+"; a foreign one is emulated, and needs a userland")
	fs.StringVar(&c.nic, "nic", "", "emulated `adapters`, at most two with a comma between: connectx (a virtual function, RoCE v2), connectx-pf (a physical one), connectx-ib (InfiniBand), connectx-noguid (a virtual function whose node GUID is zero); the kernel's own mlx5 drivers drive the first as mlx5_0 (default none)")
	fs.StringVar(&c.socket, "socket", "", "nic: `paths` of the sockets to make, with a comma between; their adapters share a wire")
	fs.TextVar(&c.udp, "udp", netip.Addr{}, "IPv4 `address` of this machine that mlx5_0 shares: from it mlx5_0 reaches, by UDP, RoCE devices of other machines and those of package soft on this one (default none)")
	fs.StringVar(&c.niclog, "niclog", "", "`file` for a log of what happens between the drivers and the adapters, an event a line")
	fs.StringVar(&c.suite, "userland", "", "Debian `suite` whose programs and libraries replace this machine's, such as sid for the newest C peers (default none, or bookworm-security if the architecture is foreign)")
	fs.StringVar(&c.accel, "accel", "", "`how` QEMU runs: kvm, tcg, icount or dilated (default kvm if a probe boots, or else tcg); icount is tcg with a clock that advances with every instruction, so that measurements repeat to a percent; dilated is tcg with slow clocks, for latencies like those of a real machine (go doc rdmalab)")
	fs.Float64Var(&c.factor, "factor", c.factor, "`factor` of dilation, 1 to 100")
	fs.IntVar(&c.mem, "mem", c.mem, "guest memory in `MiB`")
	fs.IntVar(&c.cpus, "cpus", 0, "`number` of guest processors (default 2, or 4 if time is dilated)")
	fs.DurationVar(&c.timeout, "timeout", c.timeout, "longest run (default 20m, or none with test, where each package has the -timeout of go test)")
	fs.IntVar(&c.parallel, "parallel", c.parallel, "`number` of machines that run at a time, for all users of one cache; others wait; 0 is no limit, -1 depends on processors and memory")
	fs.StringVar(&c.write, "write", "", "`folder` in which the guest's changes to files are permanent")
	fs.BoolVar(&c.host, "host", false, "run on this machine's own RDMA devices instead")
	fs.BoolVar(&c.all, "all", false, "fetch: all kernels")
	fs.BoolVar(&c.debug, "debug", false, "show the kernel's console")
	return fs
}

// errNoProgram is returned for a command line that names nothing to do.
var errNoProgram = errors.New("no program")

// parse returns the configuration and the command line without flags, which may also follow the
// name of a command.
func parse(args []string) (c config, rest []string, err error) {
	fs := c.flags()
	var errs []error
	fs.VisitAll(func(f *flag.Flag) {
		name := variable(f)
		if v := os.Getenv(name); v != "" {
			if err := f.Value.Set(v); err != nil {
				errs = append(errs, fmt.Errorf("%s=%s: %w", name, v, err))
			}
		}
	})
	errs = append(errs, fs.Parse(args))
	// The flags after test are those of go test.
	if rest = fs.Args(); len(rest) > 0 && slices.Contains(commands, rest[0]) && rest[0] != "test" {
		command := rest[0]
		errs = append(errs, fs.Parse(rest[1:]))
		rest = append([]string{command}, fs.Args()...)
	}
	if err := errors.Join(errs...); err != nil {
		return c, nil, err
	}
	if len(rest) == 0 {
		return c, nil, errNoProgram
	}
	if c.timeout == 0 && rest[0] != "test" {
		c.timeout = 20 * time.Minute
	}
	if c.cpus == 0 {
		c.cpus = 2
		if c.accel == dilated {
			c.cpus = 4
		}
	}
	if err := c.check(); err != nil {
		return c, nil, err
	}
	if c.nics, err = parseAdapters(c.nic); err != nil {
		return c, nil, err
	}
	if err := c.checkUDP(rest[0]); err != nil {
		return c, nil, err
	}
	if c.suite == "" && image.ArchByName(c.arch).Foreign() {
		c.suite = image.DefaultUserland
	}
	return c, rest, nil
}

func (c *config) check() error {
	for _, f := range []struct {
		name, value string
		values      []string
		optional    bool
	}{{"kernel", c.kernel, image.Names(), false}, {"peer", c.peer, image.Names(), true}, {"arch", c.arch, image.ArchNames(), false}, {"accel", c.accel, accelerators, true}} {
		if (f.value != "" || !f.optional) && !slices.Contains(f.values, f.value) {
			return fmt.Errorf("--%s %s: not one of %s", f.name, f.value, strings.Join(f.values, ", "))
		}
	}
	for flag, name := range map[string]string{"kernel": c.kernel, "peer": c.peer} {
		if err := image.Fits(name, image.ArchByName(c.arch)); err != nil {
			return fmt.Errorf("--%s %s: %w", flag, name, err)
		}
	}
	switch {
	case c.kernel == image.UML && c.suite != "":
		return errors.New("--userland does not work on User-mode Linux")
	case c.arch != "amd64" && (c.accel == dilated || c.accel == icountAccel):
		return fmt.Errorf("--arch %s: dilated and icount are for amd64 only", c.arch)
	case c.accel == "kvm" && image.ArchByName(c.arch).Foreign():
		return fmt.Errorf("--accel kvm does not work for the foreign architecture %s", c.arch)
	case !(c.factor >= 1 && c.factor <= 100):
		return fmt.Errorf("--factor %g: not in 1..100", c.factor)
	case c.mem < 256:
		return fmt.Errorf("--mem %d: at least 256 MiB are needed", c.mem)
	case c.cpus < 1:
		return fmt.Errorf("--cpus %d: at least 1 is needed", c.cpus)
	}
	return nil
}

// checkUDP checks --udp, which needs an adapter with RoCE.
func (c *config) checkUDP(command string) error {
	switch {
	case !c.udp.IsValid():
		return nil
	case !c.udp.Is4() || c.udp.IsUnspecified() || c.udp.IsLoopback() || c.udp.IsMulticast():
		return fmt.Errorf("--udp %v: not an IPv4 address that a link of a guest can have", c.udp)
	case c.peer != "":
		return errors.New("--udp does not work with --peer: only one machine can have the address")
	case command == "nic" && len(c.nics) == 0:
		return nil
	case len(c.nics) == 0 || adapters[c.nics[0]].InfiniBand:
		return errors.New("--udp: the first adapter has no RoCE: add --nic connectx")
	}
	return nil
}

// variable returns the name of the variable that sets a flag.
func variable(f *flag.Flag) string { return "LAB_" + strings.ToUpper(f.Name) }

func printHelp(w io.Writer) {
	fmt.Fprint(w, `rdmalab runs programs on a Linux kernel with RDMA devices, in a virtual machine that has
this machine's files. What the program writes is gone at the end.

usage:
  rdmalab [FLAG ...] [run] PROGRAM [ARGUMENT ...]  run a program and exit with its status
  rdmalab [FLAG ...] test [FLAG OF GO TEST ...] [PACKAGE ...]
                                                   run go test, with one machine for all packages
  rdmalab [FLAG ...] fetch                         fetch the kernel, or with --all each one
  rdmalab nic --socket PATH                        serve an emulated ConnectX to any QEMU

The devices are rxe0 (RoCE v2, 10.9.0.1, fd00:9::1) and siw0 (iWARP, 10.9.1.1, fd00:9:1::1);
with --nic connectx also mlx5_0 (a ConnectX, RoCE v2, 10.9.2.1, fd00:9:2::1).

examples:
  rdmalab test -short ./...
  go test -exec "rdmalab --kernel 6.1" -run TestEcho ./echo
  rdmalab ibv_devinfo -d rxe0
  rdmalab --nic connectx ibv_devinfo -d mlx5_0
  rdmalab --peer 6.12 sh -c 'echo I am machine $VERBS_HOST'

Flags, with the variable that sets each one's default:
`)
	var c config
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	c.flags().VisitAll(func(f *flag.Flag) {
		what, text := flag.UnquoteUsage(f)
		if !slices.Contains([]string{"", "false", "0", "0s"}, f.DefValue) {
			text += " (default " + f.DefValue + ")"
		}
		head := strings.TrimSpace("--" + f.Name + " " + what)
		for i, line := range wrap(text, 62) {
			if i > 0 {
				head = ""
			}
			env := ""
			if i == 0 {
				env = variable(f)
			}
			fmt.Fprintf(tw, "  %s\t%s\t%s\n", head, env, line)
		}
	})
	tw.Flush()
}

// wrap breaks text into lines of at most width bytes.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		if line != "" && len(line)+1+len(word) > width {
			lines = append(lines, line)
			line = ""
		}
		line = strings.TrimSpace(line + " " + word)
	}
	return append(lines, line)
}
