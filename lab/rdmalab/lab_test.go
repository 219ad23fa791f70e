//go:build linux

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/lab/internal/image"
	"github.com/goverbs/verbs/lab/internal/job"
	"github.com/goverbs/verbs/lab/internal/machine"
	"github.com/goverbs/verbs/lab/internal/session"
)

// TestMain lets the test binary run as the lab, on the host and in the guest.
func TestMain(m *testing.M) {
	if os.Getenv(nicGuestVariable) != "" {
		nicGuest()
	}
	if os.Getpid() == 1 || os.Getenv("LAB_TEST_MAIN") != "" || os.Getenv(session.Variable) != "" {
		os.Unsetenv("LAB_TEST_MAIN")
		main()
	}
	os.Exit(m.Run())
}

// lab prepares a run that boots a machine.
func lab(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	labtest.RequireAll(t, "boots a machine, which takes up to a minute")
	if _, err := image.Cached(image.Kernels[0].Name, image.ArchByName(runtime.GOARCH)); err != nil {
		t.Skipf("run rdmalab fetch: %v", err)
	}
	return command(t, args...)
}

// command prepares a run. At the end it fails the test if files or processes are left.
func command(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer, *bytes.Buffer) {
	if os.Getenv("VERBS_LAB") != "" {
		t.Skip("in the lab already")
	}
	if err := image.NeedMachine(image.Kernels[0].Name, image.ArchByName(runtime.GOARCH)); err != nil {
		t.Skip(err)
	}
	if _, err := image.ReadSelf(image.ArchByName(runtime.GOARCH)); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "LAB_TEST_MAIN=1", "LAB_TIMEOUT=2m", "LAB_PARALLEL=0", "LAB_MEM=512", "TMPDIR="+tmp, "FROM_OUTSIDE=two\nlines")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	t.Cleanup(func() {
		if left, _ := os.ReadDir(tmp); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
		procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, p := range procs {
			if b, _ := os.ReadFile(p); bytes.Contains(b, []byte(tmp)) {
				t.Errorf("still running: %s", bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
			}
		}
	})
	return cmd, &stdout, &stderr
}

func status(t *testing.T, err error) int {
	t.Helper()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return job.ExitStatus(exit.Sys().(syscall.WaitStatus))
	}
	if err != nil {
		t.Fatal(err)
	}
	return 0
}

// startUp starts a command whose first output is "up", and waits for that.
func startUp(t *testing.T, cmd *exec.Cmd, stderr fmt.Stringer) {
	t.Helper()
	cmd.Stdout = nil
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
}

// TestAdapterAndRXE exchanges messages between mlx5_0 and rxe0 of a machine, which a bridge puts on
// the wire of the adapters.
func TestAdapterAndRXE(t *testing.T) {
	script := `modprobe bridge
		ip link add bridge0 up type bridge; ip link set v1 master bridge0; ip link set eth1 master bridge0
		cd /proc/sys/net/ipv4/conf/all
		echo 1 >accept_local # packets of this machine come by the wire
		echo 1 >arp_ignore # a link answers for its own addresses alone
		pingpong() { # type, device, its address, other arguments
			type=$1 device=$2 addr=$3; shift 3
			for gid in $(grep -l ffff:$addr /sys/class/infiniband/$device/ports/1/gids/?); do
				grep -q v2 ${gid%/gids/*}/gid_attrs/types/${gid##*/} && break
			done
			ibv_${type}_pingpong -d $device -g ${gid##*/} -n 100 -c "$@"
		}
		for type in rc uc ud; do for pair in "rxe0 0a09:0001 mlx5_0 0a09:0201" "mlx5_0 0a09:0201 rxe0 0a09:0001"; do
			set -- $pair
			pingpong $type $1 $2 -s 1024 >/tmp/served 2>&1 & server=$!
			until ss -Hltn | grep -q :18515; do sleep 0.1; done
			pingpong $type $3 $4 -s 1024 localhost >/tmp/connected 2>&1 || { cat /tmp/served /tmp/connected; exit 1; }
			wait $server || { cat /tmp/served; exit 1; }
			grep -H "invalid data" /tmp/served /tmp/connected && exit 1
			echo $type $1 $3
		done; done`
	cmd, stdout, stderr := lab(t, "--nic", "connectx,connectx", "bash", "-ec", script)
	cmd.Env = append(cmd.Env, "LAB_TIMEOUT=10m")
	if code := status(t, cmd.Run()); code != 0 {
		t.Fatalf("exit status %d: %s%s", code, stdout, stderr)
	}
	if want := "rc rxe0 mlx5_0\nrc mlx5_0 rxe0\nuc rxe0 mlx5_0\nuc mlx5_0 rxe0\nud rxe0 mlx5_0\nud mlx5_0 rxe0\n"; stdout.String() != want {
		t.Errorf("stdout %q, want %q", stdout, want)
	}
}

// TestAdapterUDP connects mlx5_0 of a machine to a device of package soft on this one, in both
// directions.
func TestAdapterUDP(t *testing.T) {
	verbs := labtest.Built(t, "verbs")
	for name, script := range map[string]string{
		"soft serves": `VERBS_SOFT=10.9.2.9 $1 ping -s -C 10 & until ss -Hlun | grep -q 10.9.2.9:4791; do sleep 0.1; done
			$0 --nic connectx --udp 10.9.2.1 rping -c -v -V -C 10 -S 3000 -a 10.9.2.9; wait $!`,
		"mlx5_0 serves": `$0 --nic connectx --udp 10.9.2.1 rping -s -v -V -C 10 -S 3000 & until VERBS_SOFT=10.9.2.9 $1 ping -c -v -V -C 10 -S 3000 -a 10.9.2.1; do
			kill -0 $!; sleep 0.5; done; wait $!`,
	} {
		t.Run(name, func(t *testing.T) {
			cmd, stdout, stderr := lab(t)
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			if err := exec.Command("unshare", "-rn", "true").Run(); err != nil {
				t.Skip("needs namespaces of a user: ", err)
			}
			cmd.Path, err = exec.LookPath("unshare")
			if err != nil {
				t.Fatal(err)
			}
			cmd.Args = []string{"unshare", "-rn", "sh", "-ec", "ip link set lo up; ip addr add 10.9.2.1/24 dev lo; ip addr add 10.9.2.9/24 dev lo\n" + script, self, verbs}
			cmd.Env = append(cmd.Env, "LAB_TIMEOUT=10m")
			if code := status(t, cmd.Run()); code != 0 {
				t.Fatalf("exit status %d: %s%s", code, stdout, stderr)
			}
			if !strings.Contains(stdout.String(), "ping data") {
				t.Errorf("stdout %q", stdout)
			}
		})
	}
}

func TestProgram(t *testing.T) {
	script := `printf '[%s]' "$@"; printf '[%s]' "$FROM_OUTSIDE"; pwd; cat; uname -r; cat /sys/class/infiniband/rxe0/ports/1/state; echo complaint >&2
		echo gone > left-by-the-guest; exit 3`
	cmd, stdout, stderr := lab(t, "sh", "-c", script, "sh", "one word", "", "new\nline", "'$HOME")
	cmd.Dir = t.TempDir()
	var lines strings.Builder
	for i := range 10_000 {
		fmt.Fprintln(&lines, "line", i)
	}
	input := lines.String()
	cmd.Stdin = strings.NewReader(input)
	if code := status(t, cmd.Run()); code != 3 {
		t.Errorf("exit status %d, want 3", code)
	}
	got, want := stdout.String(), "[one word][][new\nline]['$HOME][two\nlines]"+cmd.Dir+"\n"+input
	rest, ok := strings.CutPrefix(got, want)
	if !ok {
		t.Fatalf("stdout %.400q, of %d bytes, want %.400q, of %d", got, len(got), want, len(want))
	}
	if release, state, _ := strings.Cut(rest, "\n"); release == "" || state != "4: ACTIVE\n" {
		t.Errorf("stdout ends with %q", rest)
	}
	if stderr.String() != "complaint\n" {
		t.Errorf("stderr %q", stderr)
	}
	if _, err := os.Stat(filepath.Join(cmd.Dir, "left-by-the-guest")); err == nil {
		t.Error("what the guest wrote is on the host")
	}
}

// TestKernels boots all kernels that have been fetched.
func TestKernels(t *testing.T) {
	for _, row := range image.Kernels {
		t.Run(row.Name, func(t *testing.T) {
			if _, err := image.Cached(row.Name, image.ArchByName(runtime.GOARCH)); err != nil {
				t.Skip(err)
			}
			cmd, stdout, stderr := lab(t, "sh", "-c", "uname -r; cd /sys/class/infiniband; grep . */ports/1/state; ls /dev/infiniband")
			cmd.Env = append(cmd.Env, "LAB_KERNEL="+row.Name, "LAB_TIMEOUT=5m")
			if code := status(t, cmd.Run()); code != 0 {
				t.Fatalf("exit status %d: %s", code, stderr)
			}
			release, rest, _ := strings.Cut(stdout.String(), "\n")
			t.Log(release)
			if want := "rxe0/ports/1/state:4: ACTIVE\nsiw0/ports/1/state:4: ACTIVE\nrdma_cm\nuverbs0\nuverbs1\n"; rest != want {
				t.Errorf("devices %q, want %q", rest, want)
			}
		})
	}
}

// TestOutput writes much output just before exit, to a slow reader.
func TestOutput(t *testing.T) {
	cmd, _, stderr := lab(t, "seq", "3000000")
	r, w := io.Pipe()
	cmd.Stdout = w
	sum := make(chan string)
	go func() {
		h := sha256.New()
		for buf := make([]byte, 256<<10); ; time.Sleep(10 * time.Millisecond) {
			n, err := r.Read(buf)
			if h.Write(buf[:n]); err != nil {
				sum <- fmt.Sprintf("%x", h.Sum(nil))
				return
			}
		}
	}()
	if code := status(t, cmd.Run()); code != 0 {
		t.Errorf("exit status %d: %s", code, stderr)
	}
	w.Close()
	h := sha256.New()
	for i := 1; i <= 3_000_000; i++ {
		fmt.Fprintln(h, i)
	}
	if got, want := <-sum, fmt.Sprintf("%x", h.Sum(nil)); got != want {
		t.Error("output was lost or changed")
	}
}

// TestExits ends programs and kernels in all possible ways.
func TestExits(t *testing.T) {
	for _, test := range []struct {
		name, script string
		exit         int
		stderr       string
	}{
		{"success", "exit 0", 0, ""},
		{"signal", "kill -KILL $$", 128 + 9, ""},
		{"orphans", "(sleep 0.1 &) ; sleep 1; ! grep -s '^State:.Z' /proc/[0-9]*/status", 0, ""},
		{"daemon", "sleep 1000 & exit 4", 4, ""},
		{"panic", "echo c >/proc/sysrq-trigger; sleep 100", job.ExitLab, "the kernel went down before the program ended"},
		{"warning", "echo 'WARNING: of a test' >/dev/kmsg", job.ExitLab, "the kernel warned:\nWARNING: of a test"},
		{"expected warning", "for l in 'lab: expect warning: of a test' 'WARNING: of a test'; do echo $l >/dev/kmsg; done", 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			cmd, _, stderr := lab(t, "sh", "-c", test.script)
			if code := status(t, cmd.Run()); code != test.exit {
				t.Errorf("exit status %d, want %d: %s", code, test.exit, stderr)
			}
			if !strings.Contains(stderr.String(), test.stderr) || test.stderr == "" && stderr.Len() > 0 {
				t.Errorf("stderr %q, want %q", stderr, test.stderr)
			}
		})
	}
}

// TestPatched makes a kernel crash as it sometimes does in QEMU: tests are run again,
// and other programs are not.
func TestPatched(t *testing.T) {
	for name, want := range map[string]int{"some.test": 0, "program": job.ExitLab} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file, been := filepath.Join(dir, name), filepath.Join(dir, "been")
			script := "#!/bin/sh\ntest -e " + been + " && exit 0\ntouch " + been + "; sync\necho '<0>Oops: int3: 0000' >/dev/kmsg; echo c >/proc/sysrq-trigger; sleep 100\n"
			if err := os.WriteFile(file, []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			cmd, _, stderr := lab(t, file)
			cmd.Env = append(cmd.Env, "LAB_WRITE="+dir)
			if code := status(t, cmd.Run()); code != want || !strings.Contains(stderr.String(), machine.ErrPatched.Error()) {
				t.Errorf("exit status %d, stderr %q", code, stderr)
			}
		})
	}
}

func TestNoProgram(t *testing.T) {
	cmd, _, stderr := command(t, "/no/such/program")
	if code := status(t, cmd.Run()); code != job.ExitLab || !strings.Contains(stderr.String(), "/no/such/program: no such file") {
		t.Errorf("exit status %d, stderr %q", code, stderr)
	}
}

func TestBadSettings(t *testing.T) {
	for set, want := range map[string]string{"LAB_TIMEOUT=soon": "LAB_TIMEOUT=soon: ", "LAB_MEM=much": "LAB_MEM=much: ", "LAB_KERNEL=2.4": "--kernel 2.4: "} {
		t.Run(set, func(t *testing.T) {
			cmd, _, stderr := command(t, "true")
			cmd.Env = append(cmd.Env, set)
			if code := status(t, cmd.Run()); code != job.ExitLab || !strings.Contains(stderr.String(), want) {
				t.Errorf("exit status %d, stderr %q", code, stderr)
			}
		})
	}
}

// The time begins before the boot, which may take all of it.
func TestTimeout(t *testing.T) {
	first, _, _ := lab(t, "sh", "-c", "echo up; sleep 1000")
	for limit := 5 * time.Second; ; limit *= 2 {
		var stdout, stderr bytes.Buffer
		cmd := exec.CommandContext(t.Context(), first.Path, first.Args[1:]...)
		cmd.Env = append(first.Env, "LAB_TIMEOUT="+limit.String())
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if code := status(t, cmd.Run()); code != job.ExitLab || !strings.Contains(stderr.String(), fmt.Sprintf("timeout of %v exceeded (--timeout)", limit)) {
			t.Fatalf("exit status %d, stderr %q", code, &stderr)
		}
		if stdout.String() == "up\n" {
			return
		}
		if limit > 2*time.Minute || stdout.Len() > 0 {
			t.Fatalf("in %v, stdout %q", limit, &stdout)
		}
	}
}

func TestInterrupt(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE} {
		t.Run(sig.String(), func(t *testing.T) {
			cmd, _, stderr := lab(t, "sh", "-c", "echo up; sleep 1000")
			startUp(t, cmd, stderr)
			cmd.Process.Signal(sig)
			start := time.Now()
			if code := status(t, cmd.Wait()); code != job.ExitLab {
				t.Errorf("exit status %d, want %d", code, job.ExitLab)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("ended after %v", took)
			}
		})
	}
}

func TestHost(t *testing.T) {
	if devices, _ := filepath.Glob("/sys/class/infiniband/*"); len(devices) == 0 {
		cmd, _, stderr := command(t, "true")
		cmd.Env = append(cmd.Env, "LAB_HOST=1")
		if code := status(t, cmd.Run()); code != job.ExitLab || !strings.Contains(stderr.String(), "has no RDMA device") {
			t.Errorf("exit status %d, stderr %q", code, stderr)
		}
		return
	}
	cmd, _, stderr := lab(t, "sh", "-c", "kill -KILL $$")
	cmd.Env = append(cmd.Env, "LAB_HOST=1")
	if code := status(t, cmd.Run()); code != 128+9 {
		t.Errorf("exit status %d, stderr %q", code, stderr)
	}
}
