//go:build linux

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

// umlName is the name of the kernel that is a program: User-mode Linux.
const umlName = "uml"

// kernels are the kernels that the lab can boot, the default first. Exact package
// names change with every update, so a row names the meta package. Those of 7.3 and
// of User-mode Linux will change to later versions.
// The architecture's name and the flavour are added to the names of images.
var kernels = []struct{ name, suite, meta, flavour string }{
	{"6.12", "bookworm-security", "linux-image-6.12-", ""},
	{"6.1", "bookworm-security", "linux-image-", ""},
	{"7.3", "trixie-backports", "linux-image-", ""},
	{"6.12" + pages16K, "bookworm-security", "linux-image-6.12-", pages16K},
	{"7.3" + pages16K, "trixie-backports", "linux-image-", pages16K},
	{umlName, "trixie-backports", "linux-source", ""},
}

// pages16K ends the names of kernels with pages of 16 KiB, which are for arm64.
const pages16K = "-16k"

// fits returns an error if there is no such kernel for an architecture.
func fits(kernel string, on arch) error {
	switch {
	case kernel == umlName && on.name != "amd64":
		return fmt.Errorf("not for --arch %s: User-mode Linux is for amd64 only", on.name)
	case strings.HasSuffix(kernel, pages16K) && on.name != "arm64":
		return fmt.Errorf("not for --arch %s: kernels with pages of 16 KiB are for arm64 only", on.name)
	}
	return nil
}

// kernel is a kernel that has been fetched.
type kernel struct {
	root    string // the folder it was unpacked in
	release string // uname -r
	packed  string // Debian's image
	image   string // what boots: that, or the kernel unpacked from it
	arch    arch
	modules string // the guest's /lib/modules/RELEASE; empty for User-mode Linux
}

// fetchKernel fetches and prepares a kernel, unless that has been done.
func fetchKernel(ctx context.Context, name string, on arch) (kernel, error) {
	if k, err := cachedKernel(name, on); err == nil {
		return k, nil
	}
	row := kernels[slices.Index(kernelNames(), name)]
	newest, meta := newestKernel, row.meta+on.name+row.flavour
	if name == umlName {
		newest, meta = newestUML, row.meta
	}
	k, err := newest(ctx, debian.Archive{Suite: row.suite, Arch: on.name, Log: os.Stderr}, meta)
	if err != nil {
		return kernel{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	return k, os.WriteFile(pin(name, on), []byte(k.root), 0o644)
}

// pin returns the file that names the folder of a kernel that has been fetched.
func pin(name string, on arch) string {
	if on.name != "amd64" {
		name += "-" + on.name
	}
	return filepath.Join(debian.CacheDir(), "kernel-"+name)
}

// cachedKernel returns a kernel that has been fetched.
func cachedKernel(name string, on arch) (kernel, error) {
	b, err := os.ReadFile(pin(name, on))
	if err != nil {
		return kernel{}, err
	}
	k, err := openKernel(string(b), on)
	if err == nil && !k.complete() {
		err = fmt.Errorf("%s is incomplete", k.root)
	}
	return k, err
}

// kernelNames returns the names of all kernels.
func kernelNames() (names []string) {
	for _, row := range kernels {
		names = append(names, row.name)
	}
	return names
}

// newestKernel unpacks the image that a meta package depends on, and adds siw, which
// Debian's kernels lack.
func newestKernel(ctx context.Context, a debian.Archive, meta string) (kernel, error) {
	deps, err := a.Depends(ctx, meta)
	if err != nil {
		return kernel{}, err
	}
	i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, "linux-image-") })
	if i < 0 {
		return kernel{}, fmt.Errorf("%s depends on no kernel image", meta)
	}
	image, err := a.Find(ctx, deps[i])
	if err != nil {
		return kernel{}, err
	}
	parts, err := imageParts(ctx, a, image)
	if err != nil {
		return kernel{}, err
	}
	root, err := a.Unpack(ctx, image, parts...)
	if err != nil {
		return kernel{}, err
	}
	unlock, err := debian.Lock(ctx, root+".lock")
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	k, err := openKernel(root, archByName(a.Arch))
	if err != nil || k.complete() {
		return k, err
	}
	if err := buildSiw(ctx, a, image, k); err != nil {
		return kernel{}, fmt.Errorf("siw: %w", err)
	}
	if err := k.depmod(ctx); err != nil {
		return kernel{}, err
	}
	files, err := k.moduleFiles(slices.Concat(rootModules, rdmaModules)...)
	if err == nil {
		err = k.unpackModules(ctx, files)
	}
	if err == nil {
		err = k.depmod(ctx)
	}
	if err == nil && k.image != k.packed {
		err = unpackImage(ctx, k.packed, k.image)
	}
	return k, err
}

// depmod writes the modules' dependencies.
func (k kernel) depmod(ctx context.Context) error {
	base := strings.TrimSuffix(k.modules, "/lib/modules/"+k.release)
	if out, err := exec.CommandContext(ctx, "depmod", "-b", base, k.release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod: %w\n%s", err, out)
	}
	return nil
}

// imageParts returns the packages into which images are split since 6.19. Their names
// contain the release of the image.
func imageParts(ctx context.Context, a debian.Archive, image debian.Package) ([]debian.Package, error) {
	deps, err := a.Depends(ctx, image.Name)
	if err != nil {
		return nil, err
	}
	var parts []debian.Package
	for _, d := range deps {
		if strings.HasSuffix(d, strings.TrimPrefix(image.Name, "linux-image")) {
			parts = append(parts, debian.Package{Name: d, Version: image.Version})
		}
	}
	return parts, nil
}

// openKernel finds the parts of an unpacked kernel. Newer ones are in /usr, with the
// image among the modules.
func openKernel(root string, on arch) (kernel, error) {
	if strings.HasPrefix(filepath.Base(root), umlPrefix) {
		return openUML(root)
	}
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
	if k.uml() {
		return true
	}
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

// needMachine returns an error if tools that a kernel requires are missing.
func needMachine(kernel string, on arch) error {
	if kernel == umlName {
		return needTools("ip", "xz")
	}
	if on.foreign() { // it has the other programs of its own
		return needTools(on.qemu, "depmod", "xz")
	}
	return needTools(on.qemu, "depmod", "ip", "xz", "zstd")
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
