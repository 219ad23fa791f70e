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

	"github.com/goverbs/verbs/internal/debian"
)

// kernels are those the lab can boot. Exact package names change with every
// update, so a row names the meta package.
var kernels = []struct{ name, suite, meta string }{
	{"6.12", "bookworm-security", "linux-image-6.12-amd64"},
}

// kernel is one that has been fetched.
type kernel struct {
	release string // uname -r
	image   string // bootable file
	modules string // what the guest shows as /lib/modules/RELEASE
}

// fetchKernel fetches and prepares a kernel, once.
func fetchKernel(ctx context.Context, name string) (kernel, error) {
	if name == "" {
		name = kernels[0].name
	}
	for _, row := range kernels {
		if row.name != name {
			continue
		}
		pin := filepath.Join(debian.CacheDir(), "kernel-"+name)
		if b, err := os.ReadFile(pin); err == nil {
			if k, err := openKernel(string(b)); err == nil {
				return k, nil
			}
		}
		root, err := unpackKernel(ctx, debian.Archive{Suite: row.suite, Log: os.Stderr}, row.meta)
		if err != nil {
			return kernel{}, fmt.Errorf("kernel %s: %w", name, err)
		}
		if err := os.WriteFile(pin, []byte(root), 0o644); err != nil {
			return kernel{}, err
		}
		return openKernel(root)
	}
	return kernel{}, fmt.Errorf("LAB_KERNEL=%s: not one of %v", name, kernels)
}

// unpackKernel follows a meta package to the image it stands for.
func unpackKernel(ctx context.Context, a debian.Archive, meta string) (string, error) {
	deps, err := a.Depends(ctx, meta)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, "linux-image-") })
	if i < 0 {
		return "", fmt.Errorf("%s depends on no kernel image", meta)
	}
	p, err := a.Find(ctx, deps[i])
	if err != nil {
		return "", err
	}
	root, err := a.Unpack(ctx, p)
	if err != nil {
		return "", err
	}
	unlock, err := debian.Lock(root + ".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	k, err := openKernel(root)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(k.modules, "modules.dep")); err != nil {
		if out, err := exec.CommandContext(ctx, "depmod", "-b", root, k.release).CombinedOutput(); err != nil {
			return "", fmt.Errorf("depmod: %w\n%s", err, out)
		}
	}
	return root, nil
}

func openKernel(root string) (kernel, error) {
	dirs, _ := filepath.Glob(filepath.Join(root, "lib/modules/*"))
	images, _ := filepath.Glob(filepath.Join(root, "boot/vmlinuz-*"))
	if len(dirs) != 1 || len(images) != 1 {
		return kernel{}, fmt.Errorf("%s holds no kernel", root)
	}
	return kernel{filepath.Base(dirs[0]), images[0], dirs[0]}, nil
}

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

// needTools says how to get tools that are missing.
func needTools(tools ...string) error {
	packages := map[string]string{"qemu-system-x86_64": "qemu-system-x86", "depmod": "kmod"}
	os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	var errs []error
	for _, t := range tools {
		if _, err := exec.LookPath(t); err != nil {
			errs = append(errs, fmt.Errorf("%s is missing: apt-get install %s", t, packages[t]))
		}
	}
	return errors.Join(errs...)
}
