//go:build linux

// Command rdmalab runs a program on a real kernel with RDMA devices. It is designed for
// go test -exec, in any module:
//
//	CGO_ENABLED=0 go install github.com/goverbs/verbs/cmd/rdmalab@latest
//	CGO_ENABLED=0 go test -exec rdmalab ./...
//
// In this repository make build creates it as build/lab. It must be linked statically,
// without cgo, because it is also the first program of the guest.
//
// It boots Debian's kernel in QEMU with this machine's root file system
// read-only under a layer that holds writes until the end of the run, creates the
// RDMA devices below, and runs the program there with the caller's arguments,
// environment and working directory. The program's output is copied as it is
// printed, and its exit status becomes that of the lab.
//
//	host                                │ guest
//	rdmalab ─ fetches kernel, builds    │
//	 │     siw for it, and an initramfs │
//	 │     of itself ───────────────────┼─► rdmalab as /init: modules, 9p root,
//	 ├──── QEMU ────────────────────────┤      overlay, network, devices
//	 ◄════ stdin, stdout, stderr, ══════╪═► program
//	 ◄════ result: virtio-serial ports ═╪═══ exit status, kernel warnings
//
// As the initramfs is this program itself, it needs no busybox and no image. This machine
// needs QEMU, kmod and iproute2. The maintained alternatives, virtme-ng and
// vmtest, need Python or their own init, and neither sets up RDMA nor separates
// stdout from stderr.
//
// The program finds two software RDMA devices:
//
//	rxe0   RoCE v2   on v0, one end of a veth pair   10.9.0.1/24  fd00:9::1/64
//	siw0   iWARP     on d0, a dummy                  10.9.1.1/24  fd00:9:1::1/64
//
// With LAB_KERNEL=uml the machine is User-mode Linux, an ordinary program that is
// built from the same sources, with all drivers built in: it uses hostfs instead of
// 9p, and serial lines instead of the ports. It runs programs at the processor's own
// speed, for measurements of code in user space.
//
// With LAB_PEER there are two machines, which both run the program. The devices
// are the same, but their links are wires between the two, which drop the frames
// for a machine that is down; the peer's addresses end with 2:
//
//	rdmalab ─┬─ QEMU, VERBS_HOST=1 ── program   rxe0 on w0, siw0 on w1, and
//	         ╞═ wires w0, w1, c0 ═              c0  10.9.9.1/24  to talk over
//	         └─ QEMU, VERBS_HOST=2 ── program
//
// The run ends with the first machine, whose exit status is that of the lab. The
// peer's output goes to stderr. If the peer's kernel goes down it is booted again.
//
// Debian's kernels lack siw, so it is built from Debian's sources of the same
// version, with the compiler and tools that the kernel's headers depend on,
// unpacked beside them: none of these need be installed on this machine or
// compatible with it. A kernel and its siw are fetched and built once, before the
// first run or by rdmalab fetch, and stored in the user's cache.
//
// Environment:
//
//	LAB=host       run on this machine's own RDMA devices instead
//	LAB_KERNEL     6.12 (default), 6.1 or 7.2; uml is User-mode Linux of about 7.3,
//	               which boots in a second and runs programs at full speed, but
//	               makes system calls slow, and has no modules, BPF or cgroups
//	LAB_PEER       kernel of a second machine, as LAB_KERNEL; none by default
//	LAB_TIMEOUT    longest run, default 20m
//	LAB_MEM        guest memory in MiB, default 2048
//	LAB_CPUS       guest processors, default 2, or 4 if time is dilated
//	LAB_ACCEL      kvm, tcg, icount or dilated, default: kvm if a probe boots, or else
//	               tcg; icount is tcg with a clock that advances by 1 ns with every
//	               instruction of any processor, as they take turns: measurements are
//	               repeatable to a percent whatever the load of this machine; dilated
//	               is described below
//	LAB_FACTOR     factor of dilation, 1 to 100, default 40
//	LAB_WRITE      folder in which the guest's changes to files are permanent
//	LAB_DEBUG=1    show the kernel's console
//
// # Dilated time
//
// Under plain tcg a kernel is 20 to 30 times slower than on a real machine, but its
// clocks and timers are not: time slices, retransmissions and waits of microseconds are
// out of proportion to the work. With LAB_ACCEL=dilated QEMU runs under libfaketime
// (Debian's package faketime), and all clocks and timers that it emulates run slower by
// the factor LAB_FACTOR. The time stamp counter is this machine's; the kernel is started
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
// The lab sets VERBS_LAB to the kernel's release and, if there are two machines,
// VERBS_HOST to 1 or 2 and VERBS_PEER to the release of the other kernel.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"

	"golang.org/x/sys/unix"
)

func main() {
	if os.Getpid() == 1 {
		guestMain() // does not return
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGPIPE)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
	}
	os.Exit(code)
}

const usage = `usage: rdmalab PROGRAM [ARGUMENT ...]   run it in the lab
       rdmalab fetch [all]                 only fetch the kernel, or all kernels`

// exitLab is the exit status for failures of the lab itself.
const exitLab = 125

func run(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return exitLab, errors.New(usage)
	}
	if os.Getenv("LAB") == "host" {
		return runOnHost(ctx, args)
	}
	if err := needMachine(); err != nil {
		return exitLab, err
	}
	if slices.Equal(args, []string{"fetch", "all"}) {
		return fetchAll(ctx)
	}
	k, err := fetchKernel(ctx, os.Getenv("LAB_KERNEL"))
	if err != nil || args[0] == "fetch" {
		return exitCode(err), err
	}
	opt, err := optionsFromEnv()
	if err != nil {
		return exitLab, err
	}
	j, err := newJob(k, args)
	if err != nil {
		return exitLab, err
	}
	j.Dilated = opt.accel == dilated
	if opt.accel == "" && !k.uml() {
		opt.accel = accelerator(ctx, k, opt)
	}
	std := stdio{os.Stdin, os.Stdout, os.Stderr}
	name := os.Getenv("LAB_PEER")
	if name == "" {
		return bootWithRetry(ctx, k, j, opt, std)
	}
	peer, err := fetchKernel(ctx, name)
	if err == nil && (k.uml() || peer.uml()) {
		err = errors.New("LAB_PEER: User-mode Linux has no wire to another machine")
	}
	if err != nil {
		return exitLab, err
	}
	return bootPair(ctx, k, peer, j, opt, std)
}

func fetchAll(ctx context.Context) (int, error) {
	var errs []error
	for _, row := range kernels {
		_, err := fetchKernel(ctx, row.name)
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	return exitCode(err), err
}

func exitCode(err error) int {
	if err != nil {
		return exitLab
	}
	return 0
}
