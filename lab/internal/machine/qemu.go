//go:build linux

package machine

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

// SingleCPUBoot makes the kernel boot on one processor, where patching its own code is
// safe; see Runner.Run. The others are brought up when most of the patching is done.
const SingleCPUBoot = "maxcpus=1 noreplace-smp"

// ICount is the accelerator whose clock advances by 1 ns with every instruction.
const ICount = "icount"

// qemuCommand returns the command that runs the machine. Its ports are virtio-serial
// ports on sockets in dir.
func qemuCommand(ctx context.Context, k image.Kernel, o Options, dir, initramfs, write string) (*exec.Cmd, error) {
	cpu, accel, icount := k.Arch.CPU, "tcg,thread=multi", []string(nil)
	var dil dilation
	switch o.Accel {
	case Dilated:
		var err error
		if dil, err = newDilation(o.Factor); err != nil {
			return nil, err
		}
	case "kvm":
		cpu, accel = "host", "kvm"
	case ICount:
		// Without ERMS no code copies memory byte by byte, where each byte would count.
		cpu, accel, icount = cpu+",-erms", "tcg,thread=single", []string{"-icount", "shift=0"}
	}
	share := func(tag, path, readonly string) []string {
		return []string{"-virtfs", "local,path=" + qemuValue(path) + ",mount_tag=" + tag + ",security_model=none,multidevs=remap,readonly=" + readonly}
	}
	emulator := o.Emulator
	if emulator.Args == nil {
		emulator.Args = []string{k.Arch.QEMU}
	}
	args := append(slices.Clone(emulator.Args[1:]),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-machine", k.Arch.Machine, "-accel", accel, "-cpu", cpu,
		"-m", strconv.Itoa(o.Mem), "-smp", strconv.Itoa(o.CPUs),
		"-kernel", k.Image, "-initrd", initramfs,
		"-append", "console="+k.Arch.Console+" loglevel=5 panic=-1 oops=panic net.ifnames=0 mitigations=off random.trust_cpu=on "+SingleCPUBoot+dil.kernel,
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
	if o.Userland != "" {
		args = append(args, share("userland", o.Userland, "on")...)
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
		if files, err = o.net.attach(o.number); err != nil {
			return nil, err
		}
	}
	links := o.links()
	for i := range files {
		name, mac := fmt.Sprint("wire", i), ""
		if i < len(job.Wires) {
			mac = job.MAC(i, o.number)
		} else {
			mac = adapterMAC(links[i-len(job.Wires)], o.number).String()
		}
		args = append(args, "-netdev", fmt.Sprintf("socket,id=%s,fd=%d", name, 3+i),
			"-device", fmt.Sprintf("virtio-net-%s,netdev=%s,mac=%s", k.Arch.Bus, name, mac)+noROM)
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
