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
	"github.com/goverbs/verbs/lab/internal/machine"
	"github.com/goverbs/verbs/lab/internal/session"
)

// config has the values of the flags.
type config struct {
	session.Config
	host   bool
	all    bool // fetch all kernels
	nic    string
	socket string
}

var (
	commands     = []string{"run", "test", "fetch", "nic"}
	accelerators = []string{"kvm", "tcg", machine.ICount, machine.Dilated}
)

// flags returns the flags that set c. Their defaults are c's values.
func (c *config) flags() *flag.FlagSet {
	fs := flag.NewFlagSet("rdmalab", flag.ContinueOnError)
	fs.SetOutput(io.Discard) // the caller prints errors
	fs.Usage = func() {}
	c.Kernel, c.Arch, c.Mem, c.Factor, c.Parallel = image.Kernels[0].Name, runtime.GOARCH, 2048, 40, -1
	fs.StringVar(&c.Kernel, "kernel", c.Kernel, "`name` of the kernel: "+strings.Join(image.Names(), ", ")+"; uml is User-mode Linux of about 7.3: its first use builds it for many minutes, later it boots in a second; programs run at full speed, but system calls are slow, and modules, BPF and cgroups are missing; 16k kernels, for arm64, have pages of 16 KiB")
	fs.StringVar(&c.Peer, "peer", "", "`name` of the kernel of a second machine, which runs the program as well (default none)")
	fs.StringVar(&c.Arch, "arch", c.Arch, "`name` of the architecture: "+strings.Join(image.ArchNames(), ", ")+"; a foreign one is emulated, and needs a userland")
	fs.StringVar(&c.nic, "nic", "", "emulated `adapters`, at most two with a comma between: connectx (a virtual function, RoCE v2), connectx-pf (a physical one), connectx-ib (InfiniBand), connectx-noguid (a virtual function whose node GUID is zero), erdma (Alibaba Cloud's, iWARP), erdma-roce (the same with RoCE v2, for kernels from 7.3 on); the kernel's own drivers drive the first as mlx5_0 or erdma_0 (default none)")
	fs.StringVar(&c.socket, "socket", "", "nic: `paths` of the sockets to make, with a comma between; their adapters share a wire")
	fs.TextVar(&c.UDP, "udp", netip.Addr{}, "IPv4 `address` of this machine that mlx5_0 shares: from it mlx5_0 reaches, by UDP, RoCE devices of other machines and those of package soft on this one (default none)")
	fs.StringVar(&c.NICLog, "niclog", "", "`file` for a log of what happens between the drivers and the adapters, an event a line")
	fs.StringVar(&c.Suite, "userland", "", "Debian `suite` whose programs and libraries replace this machine's, such as sid for the newest C peers (default none, or bookworm-security if the architecture is foreign)")
	fs.StringVar(&c.Accel, "accel", "", "`how` QEMU runs: kvm, tcg, icount or dilated (default kvm if a probe boots, or else tcg); icount is tcg with a clock that advances with every instruction, so that measurements repeat to a percent; dilated is tcg with slow clocks, for latencies like those of a real machine (go doc rdmalab)")
	fs.Float64Var(&c.Factor, "factor", c.Factor, "`factor` of dilation, 1 to 100")
	fs.IntVar(&c.Mem, "mem", c.Mem, "guest memory in `MiB`")
	fs.IntVar(&c.CPUs, "cpus", 0, "`number` of guest processors (default 2, or 4 if time is dilated)")
	fs.DurationVar(&c.Timeout, "timeout", c.Timeout, "longest run (default 20m, or none with test, where each package has the -timeout of go test)")
	fs.IntVar(&c.Parallel, "parallel", c.Parallel, "`number` of machines that run at a time, for all users of one cache; others wait; 0 is no limit, -1 depends on processors and memory")
	fs.StringVar(&c.Write, "write", "", "`folder` in which the guest's changes to files are permanent")
	fs.BoolVar(&c.host, "host", false, "run on this machine's own RDMA devices instead")
	fs.BoolVar(&c.all, "all", false, "fetch: all kernels")
	fs.BoolVar(&c.Debug, "debug", false, "show the kernel's console")
	return fs
}

// errNoProgram reports a command line without a command.
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
	if c.Timeout == 0 && rest[0] != "test" {
		c.Timeout = 20 * time.Minute
	}
	if c.CPUs == 0 {
		c.CPUs = 2
		if c.Accel == machine.Dilated {
			c.CPUs = 4
		}
	}
	if err := c.check(); err != nil {
		return c, nil, err
	}
	if c.NICs, err = machine.ParseAdapters(c.nic); err != nil {
		return c, nil, err
	}
	if err := c.checkUDP(rest[0]); err != nil {
		return c, nil, err
	}
	if err := c.checkTest(rest[0]); err != nil {
		return c, nil, err
	}
	if c.Suite == "" && image.ArchByName(c.Arch).Foreign() {
		c.Suite = image.DefaultUserland
	}
	return c, rest, nil
}

func (c *config) check() error {
	for _, f := range []struct {
		name, value string
		values      []string
		optional    bool
	}{{"kernel", c.Kernel, image.Names(), false}, {"peer", c.Peer, image.Names(), true}, {"arch", c.Arch, image.ArchNames(), false}, {"accel", c.Accel, accelerators, true}} {
		if (f.value != "" || !f.optional) && !slices.Contains(f.values, f.value) {
			return fmt.Errorf("--%s %s: not one of %s", f.name, f.value, strings.Join(f.values, ", "))
		}
	}
	for flag, name := range map[string]string{"kernel": c.Kernel, "peer": c.Peer} {
		if err := image.Fits(name, image.ArchByName(c.Arch)); err != nil {
			return fmt.Errorf("--%s %s: %w", flag, name, err)
		}
	}
	switch {
	case c.Kernel == image.UML && c.Suite != "":
		return errors.New("--userland does not work on User-mode Linux")
	case c.Arch != "amd64" && (c.Accel == machine.Dilated || c.Accel == machine.ICount):
		return fmt.Errorf("--arch %s: dilated and icount are for amd64 only", c.Arch)
	case c.Accel == "kvm" && image.ArchByName(c.Arch).Foreign():
		return fmt.Errorf("--accel kvm does not work for the foreign architecture %s", c.Arch)
	case !(c.Factor >= 1 && c.Factor <= 100):
		return fmt.Errorf("--factor %g: not in 1..100", c.Factor)
	case c.Mem < 256:
		return fmt.Errorf("--mem %d: at least 256 MiB are needed", c.Mem)
	case c.CPUs < 1:
		return fmt.Errorf("--cpus %d: at least 1 is needed", c.CPUs)
	}
	return nil
}

// checkUDP checks --udp, which needs an adapter with RoCE.
func (c *config) checkUDP(command string) error {
	switch {
	case !c.UDP.IsValid():
		return nil
	case !c.UDP.Is4() || c.UDP.IsUnspecified() || c.UDP.IsLoopback() || c.UDP.IsMulticast():
		return fmt.Errorf("--udp %v: not an IPv4 address that a link of a guest can have", c.UDP)
	case c.Peer != "":
		return errors.New("--udp does not work with --peer: only one machine can have the address")
	case command == "nic" && len(c.NICs) == 0:
		return nil
	case len(c.NICs) == 0 || !machine.Adapters[c.NICs[0]].RoCE():
		return errors.New("--udp: the first adapter has no RoCE: add --nic connectx")
	}
	return nil
}

// checkTest refuses the flags that contradict one machine for all packages.
func (c *config) checkTest(command string) error {
	switch {
	case command != "test":
		return nil
	case c.Peer != "":
		return errors.New("test does not work with --peer: run go test -exec rdmalab for a package that needs two machines")
	case c.host:
		return errors.New("test does not work with --host: run go test -exec 'rdmalab --host', or plain go test")
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
  rdmalab nic --socket PATH                        serve an emulated adapter to any QEMU

The devices are rxe0 (RoCE v2, 10.9.0.1, fd00:9::1) and siw0 (iWARP, 10.9.1.1, fd00:9:1::1);
with --nic connectx also mlx5_0 (a ConnectX, RoCE v2, 10.9.2.1, fd00:9:2::1),
with --nic erdma also erdma_0 (iWARP, 10.9.4.1, fd00:9:4::1).

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
