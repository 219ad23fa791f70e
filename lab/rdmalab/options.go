//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/lab/connectx"
)

// options describe a machine.
type options struct {
	accel   string
	factor  float64 // of dilation
	timeout time.Duration
	mem     int // MiB
	cpus    int
	debug   bool

	nics        []string // adapters, of --nic
	niclog      string
	udp         netip.Addr     // of --udp
	adapterWire *connectx.Wire // of all adapters: the guest may number them in another order
	emulator    emulator       // QEMU; that of the architecture if it has no program

	userland string // a folder whose programs hide this machine's; none if empty

	// If there are two machines, the wires between them and the number of this one.
	net  *network
	host int
}

// on returns the options for one of two machines.
func (o options) on(net *network, host int) options {
	o.net, o.host = net, host
	return o
}

// modules returns the modules of the machine's devices.
func (o options) modules() []string {
	if len(o.nics) == 0 {
		return rdmaModules
	}
	return slices.Concat(rdmaModules, adapterModules)
}

// icountAccel is the accelerator whose clock advances by 1 ns with every instruction.
const icountAccel = "icount"

// qemuCommand returns the command that runs the machine. Its ports are virtio-serial
// ports on sockets in dir.
func qemuCommand(ctx context.Context, k kernel, o options, dir, initramfs, write string) (*exec.Cmd, error) {
	cpu, accel, icount := k.arch.cpu, "tcg,thread=multi", []string(nil)
	var dil dilation
	switch o.accel {
	case dilated:
		var err error
		if dil, err = newDilation(o.factor); err != nil {
			return nil, err
		}
	case "kvm":
		cpu, accel = "host", "kvm"
	case icountAccel:
		// Without ERMS no code copies memory byte by byte, where each byte would count.
		cpu, accel, icount = cpu+",-erms", "tcg,thread=single", []string{"-icount", "shift=0"}
	}
	share := func(tag, path, readonly string) []string {
		return []string{"-virtfs", "local,path=" + qemuValue(path) + ",mount_tag=" + tag + ",security_model=none,multidevs=remap,readonly=" + readonly}
	}
	emulator := o.emulator
	if emulator.args == nil {
		emulator.args = []string{k.arch.qemu}
	}
	args := append(slices.Clone(emulator.args[1:]),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", k.arch.machine, "-accel", accel, "-cpu", cpu,
		"-m", strconv.Itoa(o.mem), "-smp", strconv.Itoa(o.cpus),
		"-kernel", k.image, "-initrd", initramfs,
		"-append", "console="+k.arch.console+" loglevel=5 panic=-1 oops=panic net.ifnames=0 mitigations=off random.trust_cpu=on "+singleCPUBoot+dil.kernel,
		"-serial", "chardev:console", "-chardev", "file,id=console,path="+qemuValue(filepath.Join(dir, "console")),
		"-qmp", "unix:"+qemuValue(filepath.Join(dir, qmpSocket))+",server=on,wait=off",
		"-device", "virtio-rng-"+k.arch.bus, "-device", "virtio-serial-"+k.arch.bus,
	)
	args = append(args, adapterArgs(o)...)
	args = append(args, icount...)
	args = append(args, share("root", "/", "on")...)
	if write != "" {
		args = append(args, share("write", write, "off")...)
	} else { // a machine is saved with this device
		args = append(args, share("write", dir, "on")...)
	}
	if o.userland != "" {
		args = append(args, share("userland", o.userland, "on")...)
	}
	for _, name := range ports {
		args = append(args, "-chardev", "socket,id="+name+",path="+qemuValue(filepath.Join(dir, name)),
			"-device", "virtserialport,chardev="+name+",name="+name)
	}
	noROM := ""
	if k.arch.bus == "pci" {
		noROM = ",romfile="
	}
	var files []*os.File
	if o.net != nil {
		var err error
		if files, err = o.net.attach(o.host); err != nil {
			return nil, err
		}
	}
	for i := range files {
		args = append(args, "-netdev", fmt.Sprintf("socket,id=%s,fd=%d", wires[i], 3+i),
			"-device", fmt.Sprintf("virtio-net-%s,netdev=%s,mac=%s", k.arch.bus, wires[i], mac(i, o.host))+noROM)
	}
	cmd := exec.CommandContext(ctx, emulator.args[0], args...)
	cmd.ExtraFiles = files
	if env := append(dil.env, emulator.env...); env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	return cmd, nil
}

// qemuValue returns a value as QEMU's options want it, where a comma begins the next.
func qemuValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// runOnHost runs the program on this machine, if it has an RDMA device.
func runOnHost(ctx context.Context, args []string) (int, error) {
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) == 0 {
		return exitLab, errors.New("--host: this machine has no RDMA device: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev DEV")
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), "VERBS_LAB="+sys.KernelRelease())
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exitStatus(exit.Sys().(syscall.WaitStatus)), nil
	}
	return exitCode(err), err
}
