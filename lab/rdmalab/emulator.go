//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"

	"github.com/goverbs/verbs/lab/debian"
)

// The first QEMU that has vfio-user-pci.
const qemuMajor, qemuMinor = 10, 1

// qemuSuite has a QEMU that is recent enough.
const qemuSuite = "trixie-backports"

var reQEMU = regexp.MustCompile(`version (\d+)\.(\d+)`)

// emulator is a QEMU.
type emulator struct {
	args []string // the program, and what precedes its arguments
	env  []string
}

// findEmulator returns this machine's QEMU for an architecture if that has vfio-user-pci. Otherwise
// it fetches Debian's, which runs with the libraries of its own packages.
func findEmulator(ctx context.Context, on arch) (emulator, error) {
	if path, err := exec.LookPath(on.qemu); err == nil {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if m := reQEMU.FindSubmatch(out); err == nil && m != nil {
			major, _ := strconv.Atoi(string(m[1]))
			minor, _ := strconv.Atoi(string(m[2]))
			if major > qemuMajor || major == qemuMajor && minor >= qemuMinor {
				return emulator{args: []string{path}}, nil
			}
		}
	}
	root := filepath.Join(debian.CacheDir(), "qemu-"+on.name)
	if err := unpackOnce(ctx, debian.Archive{Suite: qemuSuite, Log: os.Stderr}, root, nil, on.pkg); err != nil {
		return emulator{}, fmt.Errorf("fetch QEMU, because this machine has none of version %d.%d or later: %w", qemuMajor, qemuMinor, err)
	}
	usr := func(path string) string { return filepath.Join(root, "usr", path) }
	loaders, _ := filepath.Glob(usr("lib*/ld-linux-*.so.*"))
	libraries, _ := filepath.Glob(usr("lib/*-linux-gnu"))
	if len(loaders) != 1 || len(libraries) != 1 {
		return emulator{}, fmt.Errorf("%s holds no QEMU: remove it", root)
	}
	return emulator{
		args: []string{loaders[0], "--library-path", libraries[0], usr("bin/" + on.qemu), "-L", usr("share/qemu"), "-L", usr("share/seabios")},
		env:  []string{"QEMU_MODULE_DIR=" + usr("lib/no-modules")}, // those of this machine's QEMU do not fit
	}, nil
}
