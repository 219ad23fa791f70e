//go:build linux

package image

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

// Emulator is a QEMU.
type Emulator struct {
	Args []string // the program, and its first arguments
	Env  []string
}

// FindEmulator returns this machine's QEMU for an architecture if that has vfio-user-pci. Otherwise
// it fetches Debian's, which runs with the libraries of its own packages.
func FindEmulator(ctx context.Context, on Arch) (Emulator, error) {
	if path, err := exec.LookPath(on.QEMU); err == nil {
		out, err := exec.CommandContext(ctx, path, "--version").Output()
		if m := reQEMU.FindSubmatch(out); err == nil && m != nil {
			major, _ := strconv.Atoi(string(m[1]))
			minor, _ := strconv.Atoi(string(m[2]))
			if major > qemuMajor || major == qemuMajor && minor >= qemuMinor {
				return Emulator{Args: []string{path}}, nil
			}
		}
	}
	root := filepath.Join(debian.CacheDir(), "qemu-"+on.Name)
	if err := unpackOnce(ctx, debian.Archive{Suite: qemuSuite, Log: os.Stderr}, root, nil, on.pkg); err != nil {
		return Emulator{}, fmt.Errorf("fetch QEMU, because this machine has none of version %d.%d or later: %w", qemuMajor, qemuMinor, err)
	}
	usr := func(path string) string { return filepath.Join(root, "usr", path) }
	loaders, _ := filepath.Glob(usr("lib*/ld-linux-*.so.*"))
	libraries, _ := filepath.Glob(usr("lib/*-linux-gnu"))
	if len(loaders) != 1 || len(libraries) != 1 {
		return Emulator{}, fmt.Errorf("%s holds no QEMU: remove it", root)
	}
	return Emulator{
		Args: []string{loaders[0], "--library-path", libraries[0], usr("bin/" + on.QEMU), "-L", usr("share/qemu"), "-L", usr("share/seabios")},
		Env:  []string{"QEMU_MODULE_DIR=" + usr("lib/no-modules")}, // modules of this machine's QEMU do not fit
	}, nil
}
