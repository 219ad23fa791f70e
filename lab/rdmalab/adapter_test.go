//go:build linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/internal/guest"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
)

// TestAdapter finds emulated adapters, driven by the kernel.
func TestAdapter(t *testing.T) {
	const script = `cd /sys/class/infiniband; for d in mlx5_*; do
		echo $d $(basename $(readlink $d/device/driver)) $(cat $d/device/device $d/node_guid $d/ports/1/link_layer $d/ports/1/state $d/ports/1/lid) \
			$(for l in $(ls $d/device/net 2>/dev/null); do ip -br addr show dev $l | cut -d ' ' -f 2-; done); done; echo $VERBS_NIC`
	const first, second = "UP 10.9.2.1/24 fd00:9:2::1/64 fe80::15:b3ff:fe09:1/64", "UP 10.9.3.1/24 fd00:9:3::1/64 fe80::15:b3ff:fe09:101/64"
	for nic, want := range map[string][]string{
		"connectx":             {"mlx5_0 mlx5_core 0x101c 0015:b3ff:fe09:0001 Ethernet 4: ACTIVE 0x0 " + first},
		"connectx-pf":          {"mlx5_0 mlx5_core 0x101b 0015:b3ff:fe09:0001 Ethernet 4: ACTIVE 0x0 " + first},
		"connectx,connectx":    {"mlx5_0 mlx5_core 0x101c 0015:b3ff:fe09:0001 Ethernet 4: ACTIVE 0x0 " + first, "mlx5_1 mlx5_core 0x101c 0015:b3ff:fe09:0101 Ethernet 4: ACTIVE 0x0 " + second},
		"connectx,connectx-ib": {"mlx5_0 mlx5_core 0x101c 0015:b3ff:fe09:0001 Ethernet 4: ACTIVE 0x0 " + first, "mlx5_1 mlx5_core 0x101c 0015:b3ff:fe09:0101 InfiniBand 4: ACTIVE 0x101"},
		"connectx-noguid":      {"mlx5_0 mlx5_core 0x101c 0000:0000:0000:0000 Ethernet 4: ACTIVE 0x0 " + first},
	} {
		t.Run(nic, func(t *testing.T) {
			cmd, stdout, stderr := lab(t, "--nic", nic, "sh", "-c", script)
			if code := status(t, cmd.Run()); code != 0 {
				t.Fatalf("exit status %d: %s", code, stderr)
			}
			if got := strings.TrimSpace(stdout.String()); got != strings.Join(append(want, nic), "\n") {
				t.Errorf("adapters\n%s\nwant\n%s", got, strings.Join(want, "\n"))
			}
		})
	}
}

// TestAdapterERDMA finds an emulated erdma beside the other devices, with its link.
func TestAdapterERDMA(t *testing.T) {
	const script = `cd /sys/class/infiniband; for d in *; do echo $d $(cat $d/node_type $d/ports/1/state); done
		ip -br addr show dev eth0 | cut -d ' ' -f 2-; ip -br addr show dev eth1 | cut -d ' ' -f 2-; echo $VERBS_NIC`
	cmd, stdout, stderr := lab(t, "--nic", "connectx,erdma", "sh", "-c", script)
	if code := status(t, cmd.Run()); code != 0 {
		t.Fatalf("exit status %d: %s", code, stderr)
	}
	want := []string{
		"erdma_0 4: RNIC 4: ACTIVE", "mlx5_0 1: CA 4: ACTIVE", "rxe0 1: CA 4: ACTIVE", "siw0 4: RNIC 4: ACTIVE",
		"UP 10.9.2.1/24 fd00:9:2::1/64 fe80::15:b3ff:fe09:1/64", "UP 10.9.4.1/24 fd00:9:4::1/64 fe80::15:b3ff:fe09:101/64", "connectx,erdma",
	}
	var got []string
	for line := range strings.Lines(stdout.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("adapters\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAdapterKilled ends machines in all possible ways while C programs send. Function command
// checks that nothing is left behind.
func TestAdapterKilled(t *testing.T) {
	const script = `ibv_rc_pingpong -d mlx5_0 -g 1 -n 100000000 >/dev/null & until ibv_rc_pingpong -d mlx5_0 -g 1 -n 100000000 localhost; do sleep 0.1; done >/dev/null 2>&1 &
		until [ $(rdma res show qp | grep -c '^link mlx5_0/1 .* type RC state RTS') = 2 ]; do sleep 0.1; done; echo up; `
	for name, test := range map[string]struct {
		script string
		sig    syscall.Signal // for the lab, or SIGKILL for QEMU; 0 is a line for the script
	}{
		"reset":    {"read line; echo b >/proc/sysrq-trigger; sleep 1000", 0},
		"panic":    {"read line; echo c >/proc/sysrq-trigger; sleep 1000", 0},
		"poweroff": {"read line; echo o >/proc/sysrq-trigger; sleep 1000", 0},
		"lab":      {"sleep 1000", syscall.SIGTERM},
		"QEMU":     {"sleep 1000", syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, _, stderr := lab(t, "--nic", "connectx", "sh", "-c", script+test.script)
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			startUp(t, cmd, stderr)
			switch test.sig {
			case 0: // only now, as what a machine has printed may be lost when it is reset
				io.WriteString(stdin, "now\n")
			case syscall.SIGTERM:
				cmd.Process.Signal(test.sig)
			case syscall.SIGKILL:
				syscall.Kill(child(t, cmd.Process.Pid), test.sig)
			}
			begun := time.Now()
			if code := status(t, cmd.Wait()); code != job.ExitLab {
				t.Errorf("exit status %d: %s", code, stderr)
			}
			if took := time.Since(begun); took > 30*time.Second {
				t.Errorf("it ends after %v", took)
			}
			if regexp.MustCompile(`(?m)^panic:|^goroutine |^lab: mlx5_0: `).Match(stderr.Bytes()) {
				t.Errorf("stderr: %s", stderr)
			}
		})
	}
}

// child returns the process that another has started: QEMU.
func child(t *testing.T, parent int) int {
	t.Helper()
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, file := range stats {
		b, _ := os.ReadFile(file)
		_, rest, _ := bytes.Cut(b, []byte(") "))
		if f := strings.Fields(string(rest)); len(f) > 1 && f[1] == strconv.Itoa(parent) {
			pid, _, _ := strings.Cut(string(b), " ")
			n, err := strconv.Atoi(pid)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal("the lab has started no process")
	return 0
}

// nicGuestVariable makes the test binary the init of TestNIC's machine. The kernel has it from its
// command line.
const nicGuestVariable = "LAB_TEST_NIC"

// nicGuest loads the drivers, prints what they have made, and waits to be killed.
func nicGuest() {
	defer func() {
		fmt.Println("the guest has ended:", recover())
		syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF)
	}()
	check := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	_, err := guest.Boot()
	check(err)
	for i := range 2 {
		device, err := guest.WaitGUID(machine.AdapterGUID(i, i+1))
		check(err)
		at := "/sys/class/infiniband/" + device + "/device/"
		link, err := guest.WaitFor(at + "net/*")
		check(err)
		check(guest.LinkUp(filepath.Base(link)))
		check(guest.WaitActive(device))
		id, err := os.ReadFile(at + "device")
		check(err)
		fmt.Printf("adapter %d is active: %s\n", i, id)
	}
	select {}
}

// TestNIC serves adapters to a QEMU that the lab has not started, with the arguments of
// docs/lab.md, and then to another. The kernel's drivers find them.
func TestNIC(t *testing.T) {
	dir := t.TempDir()
	paths := []string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	if l, err := net.ListenUnix("unix", &net.UnixAddr{Name: paths[0], Net: "unix"}); err != nil {
		t.Fatal(err)
	} else {
		l.SetUnlinkOnClose(false) // as of a server that was killed
		l.Close()
	}
	cmd, _, stderr := lab(t, "nic", "--socket", strings.Join(paths, ","), "--nic", "connectx,connectx-pf")
	on := image.ArchByName(runtime.GOARCH)
	qemu, err := image.FindEmulator(t.Context(), on)
	if err != nil {
		t.Fatal(err)
	}
	k, err := image.Cached(image.Kernels[0].Name, on)
	modules := machine.Options{NICs: []string{"connectx"}}.AdapterModules()
	if err == nil {
		err = k.UnpackLater(t.Context(), modules)
	}
	initramfs := filepath.Join(dir, "initramfs")
	if err == nil {
		err = image.WriteInitramfs(initramfs, k, job.Setup{}, image.RDMAModules, append([]string{"rdma_ucm"}, modules...)...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for try := range 2 {
		labtest.Until(t, "the second socket, which is made last", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("the server has ended: %v: %s", err, stderr)
			default:
			}
			return image.Exist(paths[1])
		})
		console := filepath.Join(dir, fmt.Sprintf("console%d", try))
		args := append(qemu.Args[1:len(qemu.Args):len(qemu.Args)], "-nodefaults", "-no-reboot", "-display", "none", "-cpu", on.CPU,
			"-kernel", k.Image, "-initrd", initramfs, "-append", "console="+on.Console+" panic=-1 "+nicGuestVariable+"=1 "+machine.SingleCPUBoot, "-serial", "file:"+console,
			"-m", "2048", "-object", "memory-backend-memfd,id=mem,size=2048M,share=on", "-machine", on.Machine+",memory-backend=mem")
		for _, path := range paths {
			args = append(args, "-device", fmt.Sprintf(`{"driver":"vfio-user-pci","socket":{"type":"unix","path":"%s"}}`, path))
		}
		vm := exec.CommandContext(t.Context(), qemu.Args[0], args...)
		vm.Env = append(os.Environ(), qemu.Env...)
		var log bytes.Buffer
		vm.Stderr = &log
		if err := vm.Start(); err != nil {
			t.Fatal(err)
		}
		gone := make(chan struct{})
		go func() { vm.Wait(); close(gone) }()
		t.Cleanup(func() { vm.Process.Kill(); <-gone })
		labtest.Until(t, "the adapters", func() bool {
			b, _ := os.ReadFile(console)
			select {
			case <-gone:
				t.Fatalf("QEMU has ended: %s%s", &log, image.Tail(b))
			default:
			}
			return bytes.Contains(b, []byte("adapter 0 is active: 0x101c")) && bytes.Contains(b, []byte("adapter 1 is active: 0x101b"))
		})
		if try == 0 {
			vm.Process.Kill()
			<-gone
		}
	}
	cmd.Process.Signal(syscall.SIGTERM) // while QEMU is connected
	select {
	case err := <-ended:
		if code := status(t, err); code != 0 {
			t.Errorf("exit status %d: %s", code, stderr)
		}
	case <-time.After(20 * time.Second):
		t.Error("it does not end")
		cmd.Process.Kill()
		<-ended
	}
	for _, path := range paths {
		if image.Exist(path) {
			t.Errorf("%s is left", path)
		}
	}
}
