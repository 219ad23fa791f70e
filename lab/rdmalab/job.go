//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cavaliergopher/cpio"
)

// setup is what the guest knows when it boots. It is in the initramfs.
type setup struct {
	Release  string
	Modules  string   // path of the kernel's modules on the host; none for User-mode Linux
	Early    []string // module files in the initramfs, in loading order
	Late     []string // module files that are loaded from the host's root, relative to Modules
	Probe    bool     // only check that the kernel boots
	Userland bool     // programs are shared that hide the host's
	Host     int      // which of two machines this is; 0 if there is no other
}

// job describes the guest's work. The guest gets it when it is ready.
type job struct {
	setup
	Args     []string
	Env      []string
	Dir      string
	Write    string     // of --write
	Stdin    bool       // the program has input
	Keep     []string   // paths at which files that the program writes are kept
	Shared   bool       // other programs will run on this machine
	Dilated  bool       // check the clock
	Restored *fresh     // set if the machine was saved
	Adapters []adapter  // that are plugged in when the machine runs, in their order
	UDP      netip.Addr // of --udp

	begun time.Time     // if set, the time since then is a part of the test's
	limit time.Duration // of the program; 0 is none
}

// adapter is an emulated adapter of a machine.
type adapter struct {
	GUID       string // of its system image, as sysfs shows it
	InfiniBand bool
}

// patience is how long a program may take to end after a signal.
func (j *job) patience() time.Duration {
	if j.limit == 0 {
		return 20 * time.Second
	}
	return min(max(j.limit/10, 5*time.Second), 30*time.Second)
}

// order is what the host sends to the guest: a job, or a signal for its program.
type order struct {
	Job    *job
	Signal int
}

// What the guest reports when it can take a job, before it runs the program, and when that has ended.
const (
	ready   = "ready\n"
	started = "started\n"
	ended   = "ended\n"
)

// result is the guest's report of a program's end. The guest then waits for an order.
type result struct {
	Exit       int
	Out, Err   int64    // bytes that the program wrote
	Error      string   // the lab's own failure inside the guest
	Kernel     []string // warnings in the kernel's log
	Files      []kept   // what the program wrote at the paths of job.Keep, in their order
	Lost, Left []string // what is no longer there, or is new, on a machine that is shared
}

// kept is what a program has written at a path that is kept: a file, or the files in a folder, by their
// names there. A guest names no other path.
type kept struct {
	File   []byte
	Folder map[string][]byte
}

// status returns the exit status of the lab.
func (r *result) status() (int, error) {
	var err error
	switch {
	case len(r.Kernel) > 0:
		err = fmt.Errorf("%w:\n%s", errWarned, strings.Join(r.Kernel, "\n"))
	case len(r.Lost) > 0:
		err = fmt.Errorf("the program has left the machine without\n%s", strings.Join(r.Lost, "\n"))
	}
	if err != nil && r.Exit == 0 {
		r.Exit = exitLab
	}
	return r.Exit, err
}

// exitStatus returns the exit status of a program that has ended. As in a shell, it is 128
// plus the number of a signal.
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
}

// newJob returns the job that runs a program in this process's folder and environment.
func newJob(k kernel, c config, args []string) (job, error) {
	dir, err := os.Getwd()
	if err != nil {
		return job{}, err
	}
	return jobIn(k, c, args, os.Environ(), dir)
}

// jobIn returns the job that runs a program in a folder.
func jobIn(k kernel, c config, args, env []string, dir string) (job, error) {
	path, err := exec.LookPath(args[0])
	if err != nil {
		return job{}, err
	}
	if path, err = filepath.Abs(path); err != nil {
		return job{}, err
	}
	j := job{
		setup:    setup{Release: k.release, Modules: k.modules, Userland: c.userland != ""},
		Args:     append([]string{path}, args[1:]...),
		Env:      append(slices.Clip(env), "VERBS_LAB="+k.release),
		Dir:      dir,
		Keep:     keptPaths(args, env, dir),
		Dilated:  c.accel == dilated,
		Adapters: machineAdapters(c.nics, 1),
		UDP:      c.udp,
	}
	if len(c.nics) > 0 {
		j.Env = append(j.Env, "VERBS_NIC="+strings.Join(c.nics, ","))
	}
	if c.write != "" {
		if j.Write, err = filepath.Abs(c.write); err != nil {
			return job{}, err
		}
	}
	return j, nil
}

// onHost returns the job for one of two machines, whose peer runs the kernel other.
func (j job) onHost(host int, k, other kernel, nics []string) job {
	j.Env = append(slices.DeleteFunc(slices.Clone(j.Env), func(s string) bool { return strings.HasPrefix(s, "VERBS_LAB=") }),
		"VERBS_LAB="+k.release, fmt.Sprintf("VERBS_HOST=%d", host), "VERBS_PEER="+other.release)
	j.Host, j.Release, j.Modules, j.Adapters = host, k.release, k.modules, machineAdapters(nics, host)
	return j
}

// writeInitramfs writes a root with this program as /init, the setup, and the modules that are
// needed to mount the host's root, with others by their names. Those of the devices are loaded
// from there.
func writeInitramfs(file string, k kernel, s setup, devices []string, others ...string) error {
	var early []string
	if !k.uml() {
		if s.Host != 0 {
			devices = append(slices.Clip(devices), "virtio_net")
		}
		var err error
		if early, err = k.moduleFiles(slices.Concat(rootModules, others)...); err != nil {
			return err
		}
		if s.Late, err = k.moduleFiles(devices...); err != nil {
			return err
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.NewWriter(f)
	add := func(name string, mode cpio.FileMode, data []byte) error {
		if err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, dir := range []string{"userland", "dev", "proc", "sys", "host", "layer", "root"} {
		if err := add(dir, cpio.TypeDir|0o755, nil); err != nil {
			return err
		}
	}
	for _, m := range early {
		data, err := os.ReadFile(filepath.Join(k.modules, m))
		if err != nil {
			return err
		}
		if err := add(filepath.Base(m), cpio.TypeReg|0o644, data); err != nil {
			return err
		}
		s.Early = append(slices.Clip(s.Early), filepath.Base(m))
	}
	self, err := readSelf(k.arch)
	if err != nil {
		return err
	}
	if err := add("init", cpio.TypeReg|0o755, self); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := add("setup.json", cpio.TypeReg|0o644, text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}

// readSelf reads this program, for an architecture. It fails if the program is dynamically linked.
func readSelf(a arch) ([]byte, error) {
	file, err := a.self()
	if err != nil {
		return nil, err
	}
	self, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	f, err := elf.NewFile(bytes.NewReader(self))
	if err != nil {
		return nil, err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return nil, errors.New("rdmalab itself is dynamically linked: build it with CGO_ENABLED=0")
		}
	}
	return self, nil
}
