//go:build linux

// Command rdmalab runs a program on a real kernel with RDMA devices. It is designed for
// go test -exec, in any module:
//
//	CGO_ENABLED=0 go install github.com/goverbs/verbs/lab/rdmalab@latest
//	CGO_ENABLED=0 go test -exec rdmalab ./...
//	rdmalab test ./...
//
// The second is go test as well, with one machine for all packages instead of one for each.
//
// In this repository make build creates it as build/lab. It must be linked statically,
// without cgo, because it is also the first program of the guest.
//
// It boots Debian's kernel in QEMU with this machine's root file system
// read-only under a layer that holds writes until the end of the run, creates the
// RDMA devices below, and runs the program there with the caller's arguments,
// environment and working directory. The program's output is copied as it is printed, and the lab exits
// with its status.
//
//	host                                │ guest
//	rdmalab ─ fetches kernel, builds    │
//	 │     siw for it, and an initramfs │
//	 │     of itself ───────────────────┼─► rdmalab as /init: modules, 9p root,
//	 ├──── QEMU ────────────────────────┤      overlay, network, devices
//	 ◄════ stdin, stdout, stderr, ══════╪═► program
//	 ◄════ result: virtio-serial ports ═╪═══ exit status, kernel warnings
//
// Without KVM booting takes several seconds. So when a machine is ready for its program, its state
// is stored in the cache, and later runs restore it in one second, until this machine restarts.
// Each run has the same machine as the first, with the time and random numbers of its own.
// Dilated time, icount, --peer and --debug boot every time.
//
// As the initramfs is this program itself, it needs no busybox and no image. This machine
// needs QEMU, kmod, iproute2, xz and zstd. Of the maintained alternatives, virtme-ng and
// vmtest need Python or their own init and do not separate stdout from stderr; vimto, which
// runs go test on kernels from container images, has no network between machines. None sets up
// RDMA.
//
// The program finds two software RDMA devices:
//
//	rxe0   RoCE v2   on v0, one end of a veth pair   10.9.0.1/24  fd00:9::1/64
//	siw0   iWARP     on d0, a dummy                  10.9.1.1/24  fd00:9:1::1/64
//
// With --kernel uml the machine is User-mode Linux, an ordinary program with all drivers built in: it
// uses hostfs instead of 9p, and serial lines instead of the ports. It runs programs at the processor's
// own speed, for measurements of code in user space.
//
// With --peer there are two machines, which both run the program. The devices
// are the same, but their links are wires between the two, which drop the frames
// for a machine that is down; the peer's addresses end with 2:
//
//	rdmalab ─┬─ QEMU, VERBS_HOST=1 ── program   rxe0 on w0, siw0 on w1, and
//	         ╞═ wires w0, w1, c0 ═              c0  10.9.9.1/24  to talk over
//	         └─ QEMU, VERBS_HOST=2 ── program
//
// The run ends with the first machine, and the lab exits with its status. The peer's output goes to
// stderr. If the peer's kernel goes down it is booted again.
//
// Debian's kernels lack siw and erdma, so they are built from Debian's sources of the same
// version, with the compiler and tools that the kernel's headers depend on,
// unpacked beside them: none of these need be installed on this machine or
// compatible with it. A kernel and its siw are fetched and built once, before the
// first run or by rdmalab fetch, and stored in the user's cache; erdma is, before the first run with
// --nic erdma.
//
// # Flags
//
// Each flag has a variable, in capitals and with LAB_ before it, that sets its default:
// --kernel 6.1 and LAB_KERNEL=6.1 mean the same. rdmalab --help lists them.
//
//	go test -exec "rdmalab --kernel 6.1" ./...
//
// # Tests
//
// A test of go test -exec rdmalab that exceeds its time shows its stacks: SIGQUIT is passed on to
// the program, and -test.timeout is reduced by the wait for a turn and for the machine. The files
// that flags such as -test.coverprofile and the variable GOCOVERDIR name are copied from the guest.
//
// # Dilated time
//
// Under plain tcg a kernel is 20 to 30 times slower than on a real machine, but its
// clocks and timers are not: time slices, retransmissions and waits of microseconds are
// out of proportion to the work. With --accel dilated QEMU runs under libfaketime
// (Debian's package faketime), and all clocks and timers that it emulates run slower by
// the factor --factor. The time stamp counter is this machine's; the kernel is started
// with a frequency multiplied by the factor. Latencies are then those of a real machine,
// and a guest processor that waits for this machine loses less of its time by the factor.
// After booting, the lab compares the guest's clock, its counter and a timer with this
// machine's, and does not run the program if one is off by more than a percent.
//
// Limits: user space is emulated better than kernels are, so it seems 5 to 10 times
// faster than on a real machine, and the kernel's part of each figure is too great; there
// are no cache misses; a second of sleep takes 40 seconds of real time. If the guest has
// more processors than this machine, one that becomes busy may wait until this machine's
// next tick, after 4 ms, or 100 µs of the guest at factor 40: with 4 on 2, that is the 99th
// percentile of most latencies, whereas with 2 it is 5 to 30 µs. But two polling programs,
// and the kernel's threads between them, need three processors: on two, the message rate
// depends on which of them share a processor, for as long as the programs run.
//
// # Warnings
//
// A run in which the kernel reports a bug of its own fails, unless the program
// has written "lab: expect warning: " and a part of the warning to /dev/kmsg.
//
// The lab sets VERBS_LAB to the kernel's release, with --host VERBS_ON_HOST to 1, with --nic VERBS_NIC
// to its value and, if there are two machines, VERBS_HOST to 1 or 2 and VERBS_PEER to the release of
// the other kernel.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/lab/internal/guest"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
	"github.com/goverbs/verbs/lab/internal/session"
)

func main() {
	if os.Getpid() == 1 {
		guest.Main() // does not return
	}
	ends := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGPIPE}
	if !signal.Ignored(unix.SIGHUP) { // as under nohup
		ends = append(ends, unix.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	ctx, std := withSignals(ctx)
	code, err := run(ctx, os.Args[1:], std)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	os.Exit(code)
}

// withSignals returns the standard streams of this process with SIGQUIT as the signals for the program, which
// answers with its stacks. If none takes the signal within a second, because none runs, it ends the context.
func withSignals(ctx context.Context) (context.Context, machine.Stdio) {
	ctx, cancel := context.WithCancelCause(ctx)
	got, quits := make(chan os.Signal, 1), make(chan os.Signal)
	signal.Notify(got, unix.SIGQUIT)
	go func() {
		for sig := range got {
			select {
			case quits <- sig:
			case <-time.After(time.Second):
				cancel(errQuit)
			}
		}
	}()
	return ctx, machine.Stdio{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Signals: quits}
}

var errQuit = errors.New("SIGQUIT")

func run(ctx context.Context, args []string, std machine.Stdio) (int, error) {
	begun := time.Now()
	if socket := os.Getenv(session.Variable); socket != "" && len(args) > 0 {
		return session.Join(ctx, socket, args, std)
	}
	c, args, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		printHelp(os.Stdout)
		return 0, nil
	}
	if errors.Is(err, errNoProgram) {
		printHelp(os.Stderr)
		return job.ExitLab, nil
	}
	if err != nil {
		return job.ExitLab, err
	}
	command := "run"
	if slices.Contains(commands, args[0]) {
		command, args = args[0], args[1:]
	}
	switch command {
	case "fetch":
		return fetch(ctx, c)
	case "nic":
		err := machine.ServeSockets(ctx, c.socket, c.Options)
		return job.ExitCode(err), err
	}
	if len(args) == 0 && command == "run" {
		return job.ExitLab, errors.New("no program to run: see rdmalab --help")
	}
	if c.host {
		err := runOnHost(args)
		return job.ExitCode(err), err
	}
	on := image.ArchByName(c.Arch)
	if err := image.NeedMachine(c.Kernel, on); err != nil {
		return job.ExitLab, err
	}
	if _, err := image.ReadSelf(on); err != nil {
		return job.ExitLab, err
	}
	if command == "test" {
		return session.Test(ctx, c.Config, args)
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return job.ExitLab, err
	}
	return session.Run(ctx, c.Config, args, std, begun)
}

// fetch fetches the chosen kernels, or all.
func fetch(ctx context.Context, c config) (int, error) {
	if err := image.NeedMachine(c.Kernel, image.ArchByName(c.Arch)); err != nil {
		return job.ExitLab, err
	}
	on, names := image.ArchByName(c.Arch), []string{c.Kernel}
	if c.Peer != "" {
		names = append(names, c.Peer)
	}
	if c.all {
		names = slices.DeleteFunc(image.Names(), func(name string) bool { return image.Fits(name, on) != nil })
	}
	var errs []error
	for _, name := range names {
		k, err := image.Fetch(ctx, name, on)
		if err == nil {
			err = k.BuildLater(ctx, c.AdapterModules())
		}
		errs = append(errs, err)
	}
	if c.Suite != "" {
		_, err := image.FetchUserland(ctx, c.Suite, on)
		errs = append(errs, err)
	}
	if len(c.NICs) > 0 {
		_, err := image.FindEmulator(ctx, on)
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	return job.ExitCode(err), err
}

// runOnHost becomes the program, which gets signals itself, if this machine has an RDMA device.
func runOnHost(args []string) error {
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) == 0 {
		return errors.New("--host: this machine has no RDMA device: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEV")
	}
	path, err := exec.LookPath(args[0])
	if err != nil {
		return err
	}
	os.Setenv("VERBS_LAB", sys.KernelRelease())
	os.Setenv("VERBS_ON_HOST", "1")
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args, os.Environ()))
}
