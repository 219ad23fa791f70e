//go:build linux

package main

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

// kernel is a kernel that has been fetched.
type kernel struct {
	root    string // the folder it was unpacked in
	release string // uname -r
	packed  string // Debian's image
	image   string // what boots: that, or the kernel unpacked from it
	arch    arch
	modules string // the guest's /lib/modules/RELEASE; empty for User-mode Linux
}

// depmod writes the modules' dependencies.
func (k kernel) depmod(ctx context.Context) error {
	base := strings.TrimSuffix(k.modules, "/lib/modules/"+k.release)
	if out, err := exec.CommandContext(ctx, "depmod", "-b", base, k.release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w\n%s", err, out)
	}
	return nil
}

// openKernel finds the parts of an unpacked kernel. Newer ones are in /usr, with the
// image among the modules.
func openKernel(root string, on arch) (kernel, error) {
	find := func(old, merged string) string {
		for _, p := range []string{old, merged} {
			if m, _ := filepath.Glob(filepath.Join(root, p)); len(m) == 1 {
				return m[0]
			}
		}
		return ""
	}
	k := kernel{
		root:    root,
		arch:    on,
		packed:  find("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"),
		modules: find("lib/modules/*", "usr/lib/modules/*"),
	}
	if k.packed == "" || k.modules == "" {
		return kernel{}, fmt.Errorf("%s holds no kernel", root)
	}
	k.image = k.packed
	if on.name == "amd64" {
		k.image = filepath.Join(root, "vmlinux")
	}
	k.release = filepath.Base(k.modules)
	return k, nil
}

// complete reports whether the kernel has been prepared, as far as the last steps.
func (k kernel) complete() bool {
	files, err := k.moduleFiles(rdmaModules...)
	return err == nil && exist(k.image) && !slices.ContainsFunc(files, packed)
}

// rootModules are needed to mount the real root, rdmaModules for the devices.
var (
	rootModules = []string{"virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"}
	rdmaModules = []string{"ib_uverbs", "rdma_ucm", "rdma_rxe", "siw", "veth", "dummy"}
)

// moduleFiles returns the files of the named modules and of those they need,
// in loading order, relative to k.modules. Modules built into the kernel are
// left out.
func (k kernel) moduleFiles(names ...string) ([]string, error) {
	f, err := os.Open(filepath.Join(k.modules, "modules.dep"))
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
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
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
			return nil, fmt.Errorf("kernel %s has no module %s", k.release, name)
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

// uml reports whether the kernel is User-mode Linux: it has no modules, since everything
// is built in.
func (k kernel) uml() bool { return k.modules == "" }

// packed reports whether a module's file is compressed.
func packed(name string) bool { return filepath.Ext(name) != ".ko" }

// adapterModules are the drivers of adapters.
var adapterModules = []string{"mlx5_ib"}
