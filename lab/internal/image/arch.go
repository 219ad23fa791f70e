//go:build linux

package image

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// Arch is a processor architecture of guests. Go and Debian use the same name for it.
type Arch struct {
	Name    string
	QEMU    string // the program, which is in a package
	pkg     string
	Machine string
	CPU     string // the emulated processor
	Console string
	Bus     string // of virtio devices, the suffix of their names
	gcc     string // suffix of the cross-compiler's package
}

var arches = []Arch{
	// Without CX16 the kernel's allocator does not use CMPXCHG16B, which may leave wrong
	// flags in an emulated processor: kernels have crashed there.
	{"amd64", "qemu-system-x86_64", "qemu-system-x86", "q35", "max,-cx16", "ttyS0", "pci", "x86-64-linux-gnu"},
	{"arm64", "qemu-system-aarch64", "qemu-system-arm", "virt,gic-version=3", "max,pauth-impdef=on", "ttyAMA0", "pci", "aarch64-linux-gnu"},
	{"s390x", "qemu-system-s390x", "qemu-system-misc", "s390-ccw-virtio", "max", "ttysclp0", "ccw", "s390x-linux-gnu"},
}

// ArchNames returns the names of all architectures.
func ArchNames() (names []string) {
	for _, a := range arches {
		names = append(names, a.Name)
	}
	return names
}

// ArchByName returns an architecture whose name has been checked.
func ArchByName(name string) Arch { return arches[slices.Index(ArchNames(), name)] }

// Foreign reports whether programs of the architecture cannot run on this machine.
func (a Arch) Foreign() bool { return a.Name != runtime.GOARCH }

// self returns the file of this program for the guest.
func (a Arch) self() (string, error) {
	if !a.Foreign() {
		return "/proc/self/exe", nil
	}
	own, err := os.Executable()
	if err != nil {
		return "", err
	}
	file := own + "-" + a.Name
	if _, err := os.Stat(file); err != nil {
		return "", fmt.Errorf("%w: CGO_ENABLED=0 GOARCH=%s go build -o %s github.com/goverbs/verbs/lab/rdmalab", err, a.Name, file)
	}
	return file, nil
}

// ReadSelf reads this program, for an architecture. It fails if the program is dynamically linked.
func ReadSelf(a Arch) ([]byte, error) {
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

// UML is the name of the kernel that is a program: User-mode Linux.
const UML = "uml"
