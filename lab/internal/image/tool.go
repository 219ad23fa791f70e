//go:build linux

package image

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// NeedMachine returns an error if tools that a kernel requires are missing.
func NeedMachine(kernel string, on Arch) error {
	if kernel == UML {
		return needTools("ip", "xz")
	}
	if on.Foreign() { // it has the other programs of its own
		return needTools(on.QEMU, "depmod", "xz")
	}
	return needTools(on.QEMU, "depmod", "ip", "xz", "zstd")
}

// needTools returns an error with the packages of missing tools.
func needTools(tools ...string) error {
	install, column := "apt-get install", 0
	if _, err := exec.LookPath("dnf"); err == nil {
		install, column = "dnf install", 1
	}
	packages := map[string][2]string{
		"qemu-system-x86_64":  {"qemu-system-x86", "qemu-system-x86-core"},
		"qemu-system-aarch64": {"qemu-system-arm", "qemu-system-aarch64-core"},
		"qemu-system-s390x":   {"qemu-system-misc", "qemu-system-s390x-core"},
		"depmod":              {"kmod", "kmod"},
		"ip":                  {"iproute2", "iproute"},
		"xz":                  {"xz-utils", "xz"},
		"zstd":                {"zstd", "zstd"},
	}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var errs []error
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: %s %s", t, install, packages[t][column]))
		}
	}
	return errors.Join(errs...)
}

// Exist reports whether all files exist.
func Exist(files ...string) bool {
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			return false
		}
	}
	return true
}

// Tail returns the end of the kernel's console, for an error message.
func Tail(console []byte) string {
	const limit = 4 << 10
	if len(console) > limit {
		console = console[len(console)-limit:]
	}
	if len(bytes.TrimSpace(console)) == 0 {
		return ""
	}
	return "\n--- kernel console ---\n" + strings.TrimSpace(string(console))
}
