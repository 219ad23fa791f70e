//go:build linux

package main

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

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
}

// adapter is an emulated adapter of a machine.
type adapter struct {
	GUID       string // of its system image, as sysfs shows it
	InfiniBand bool
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

// exitStatus returns the exit status of a program that has ended. As in a shell, it is 128
// plus the number of a signal.
func exitStatus(s syscall.WaitStatus) int {
	if s.Signaled() {
		return 128 + int(s.Signal())
	}
	return s.ExitStatus()
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
