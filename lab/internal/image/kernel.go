//go:build linux

// Package image fetches and builds the parts of machines, once: kernels with siw and User-mode Linux,
// programs of a Debian suite, QEMU, and the initramfs.
package image

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Kernel is a kernel that has been fetched.
type Kernel struct {
	Root    string // the folder it was unpacked in
	Release string // uname -r
	packed  string // Debian's image
	Image   string // the file to boot: packed, or the kernel unpacked from it
	Arch    Arch
	Modules string // the guest's /lib/modules/RELEASE; empty for User-mode Linux
}

// UML reports whether the kernel is User-mode Linux: it has no modules, since everything
// is built in.
func (k Kernel) UML() bool { return k.Modules == "" }

// depmod writes the modules' dependencies.
func (k Kernel) depmod(ctx context.Context) error {
	base := strings.TrimSuffix(k.Modules, "/lib/modules/"+k.Release)
	if out, err := exec.CommandContext(ctx, "depmod", "-b", base, k.Release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w\n%s", err, out)
	}
	return nil
}

// openKernel finds the parts of an unpacked kernel. Newer ones are in /usr, with the
// image among the modules. The guest mounts them by names without links, before it changes its root.
func openKernel(root string, on Arch) (Kernel, error) {
	root, err := filepath.Abs(root)
	if err == nil {
		root, err = filepath.EvalSymlinks(root)
	}
	if err != nil {
		return Kernel{}, err
	}
	find := func(old, merged string) string {
		for _, p := range []string{old, merged} {
			if m, _ := filepath.Glob(filepath.Join(root, p)); len(m) == 1 {
				return m[0]
			}
		}
		return ""
	}
	k := Kernel{
		Root:    root,
		Arch:    on,
		packed:  find("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"),
		Modules: find("lib/modules/*", "usr/lib/modules/*"),
	}
	if k.packed == "" || k.Modules == "" {
		return Kernel{}, fmt.Errorf("%s holds no kernel", root)
	}
	k.Image = k.packed
	if on.Name == "amd64" {
		k.Image = filepath.Join(root, "vmlinux")
	}
	k.Release = filepath.Base(k.Modules)
	return k, nil
}

// complete reports whether the kernel has been prepared, as far as the last steps.
func (k Kernel) complete() bool {
	files, err := k.ModuleFiles(RDMAModules...)
	return err == nil && Exist(k.Image) && !slices.ContainsFunc(files, packed)
}

// rootModules are needed to mount the real root, RDMAModules for the devices.
var (
	rootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
	RDMAModules = []string{"ib_uverbs", "rdma_ucm", "rdma_rxe", "siw", "veth", "dummy"}
)

// ModuleFiles returns the files of the named modules and of those they need,
// in loading order, relative to k.Modules. Modules built into the kernel are
// left out.
func (k Kernel) ModuleFiles(names ...string) ([]string, error) {
	f, err := os.Open(filepath.Join(k.Modules, "modules.dep"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	deps := map[string][]string{} // file -> all it needs, nearest first
	file := map[string]string{}   // name -> file
	for s := bufio.NewScanner(f); s.Scan(); {
		path, needs, _ := strings.Cut(s.Text(), ":")
		name, _, _ := strings.Cut(filepath.Base(path), ".ko")
		file[strings.ReplaceAll(name, "-", "_")] = path
		deps[path] = strings.Fields(needs)
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	var order []string
	for _, name := range names {
		path, ok := file[name]
		if !ok {
			if strings.Contains(string(builtin), "/"+name+".ko") {
				continue
			}
			return nil, fmt.Errorf("kernel %s has no module %s", k.Release, name)
		}
		need := slices.Clone(deps[path])
		slices.Reverse(need)
		for _, p := range append(need, path) {
			if !slices.Contains(order, p) {
				order = append(order, p)
			}
		}
	}
	return order, nil
}

// packed reports whether a module's file is compressed.
func packed(name string) bool { return filepath.Ext(name) != ".ko" }
