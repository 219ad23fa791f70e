//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
)

// singleCPUBoot makes the kernel boot on one processor, where patching its own code is
// safe; see runner.run. The others are brought up when most of the patching is done.
const singleCPUBoot = "maxcpus=1 noreplace-smp"

// icountAccel is the accelerator whose clock advances by 1 ns with every instruction.
const icountAccel = "icount"

// qemuCommand returns the command that runs the machine. Its ports are virtio-serial
// ports on sockets in dir.
func qemuCommand(ctx context.Context, k image.Kernel, o options, dir, initramfs, write string) (*exec.Cmd, error) {
	cpu, accel, icount := k.Arch.CPU, "tcg,thread=multi", []string(nil)
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
	if emulator.Args == nil {
		emulator.Args = []string{k.Arch.QEMU}
	}
	args := append(slices.Clone(emulator.Args[1:]),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", k.Arch.Machine, "-accel", accel, "-cpu", cpu,
		"-m", strconv.Itoa(o.mem), "-smp", strconv.Itoa(o.cpus),
		"-kernel", k.Image, "-initrd", initramfs,
		"-append", "console="+k.Arch.Console+" loglevel=5 panic=-1 oops=panic net.ifnames=0 mitigations=off random.trust_cpu=on "+singleCPUBoot+dil.kernel,
		"-serial", "chardev:console", "-chardev", "file,id=console,path="+qemuValue(filepath.Join(dir, "console")),
		"-qmp", "unix:"+qemuValue(filepath.Join(dir, qmpSocket))+",server=on,wait=off",
		"-device", "virtio-rng-"+k.Arch.Bus, "-device", "virtio-serial-"+k.Arch.Bus,
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
	for _, name := range job.Ports {
		args = append(args, "-chardev", "socket,id="+name+",path="+qemuValue(filepath.Join(dir, name)),
			"-device", "virtserialport,chardev="+name+",name="+name)
	}
	noROM := ""
	if k.Arch.Bus == "pci" {
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
		args = append(args, "-netdev", fmt.Sprintf("socket,id=%s,fd=%d", job.Wires[i], 3+i),
			"-device", fmt.Sprintf("virtio-net-%s,netdev=%s,mac=%s", k.Arch.Bus, job.Wires[i], job.MAC(i, o.host))+noROM)
	}
	cmd := exec.CommandContext(ctx, emulator.Args[0], args...)
	cmd.ExtraFiles = files
	if env := append(dil.env, emulator.Env...); env != nil {
		cmd.Env = append(os.Environ(), env...)
	}
	return cmd, nil
}

// qemuValue returns a value as QEMU's options want it, where a comma begins the next.
func qemuValue(s string) string { return strings.ReplaceAll(s, ",", ",,") }
