//go:build linux

package image

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

// Kernels are the kernels that the lab can boot, the default first. Names of packages change with
// every update, so a row names the meta package, to which the architecture's name and the flavour are
// added. The rows 7.3, 7.2 and uml will change to later versions. 6.18 is the last of its kind in Debian, which
// went on to 6.19 and keeps the image only: backports names the packages that siw is built from.
var Kernels = []struct{ Name, suite, meta, flavour string }{
	{"6.12", "bookworm-security", "linux-image-6.12-", ""},
	{"6.1", "bookworm-security", "linux-image-", ""},
	{"7.3", "trixie-backports", "linux-image-", ""},
	{"6.12-trixie", "trixie-security", "linux-image-", ""},
	{longterm, "trixie-backports", "linux-image-6.18.15+deb13-", ""},
	{"7.2", "sid", "linux-image-", ""},
	{"6.12" + pages16K, "bookworm-security", "linux-image-6.12-", pages16K},
	{"7.3" + pages16K, "trixie-backports", "linux-image-", pages16K},
	{UML, "trixie-backports", "linux-source", ""},
}

// longterm is upstream's longterm kernel after 6.12.
const longterm = "6.18"

//go:embed backports.txt
var backports string

// archive returns the archive that has a kernel.
func archive(suite string, on Arch) debian.Archive {
	a := debian.Archive{Suite: suite, Arch: on.Name, Log: os.Stderr}
	if suite == "trixie-backports" && on.Name == "amd64" {
		a.More = backports
	}
	return a
}

// pages16K is the suffix of kernels for arm64 with pages of 16 KiB.
const pages16K = "-16k"

// Fits returns an error if there is no such kernel for an architecture.
func Fits(kernel string, on Arch) error {
	switch {
	case kernel == longterm && on.Name != "amd64":
		return fmt.Errorf("not for --arch %s: this kernel is for amd64 only", on.Name)
	case kernel == UML && on.Name != "amd64":
		return fmt.Errorf("not for --arch %s: User-mode Linux is for amd64 only", on.Name)
	case strings.HasSuffix(kernel, pages16K) && on.Name != "arm64":
		return fmt.Errorf("not for --arch %s: kernels with pages of 16 KiB are for arm64 only", on.Name)
	}
	return nil
}

// Fetch fetches and prepares a kernel, or returns it from the cache.
func Fetch(ctx context.Context, name string, on Arch) (Kernel, error) {
	if k, err := Cached(name, on); err == nil {
		return k, nil
	}
	row := Kernels[slices.Index(Names(), name)]
	newest, meta := newestKernel, row.meta+on.Name+row.flavour
	if name == UML {
		newest, meta = newestUML, row.meta
	}
	k, err := newest(ctx, archive(row.suite, on), meta)
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	return k, os.WriteFile(pin(name, on), []byte(k.Root), 0o644)
}

// pin returns the file that names the folder of a kernel that has been fetched.
func pin(name string, on Arch) string {
	if on.Name != "amd64" {
		name += "-" + on.Name
	}
	return filepath.Join(debian.CacheDir(), "kernel-"+name)
}

// Cached returns a kernel that has been fetched.
func Cached(name string, on Arch) (Kernel, error) {
	b, err := os.ReadFile(pin(name, on))
	if err != nil {
		return Kernel{}, err
	}
	root := string(b)
	if strings.HasPrefix(filepath.Base(root), umlPrefix) {
		return openUML(root)
	}
	k, err := openKernel(root, on)
	if err == nil && !k.complete() {
		err = fmt.Errorf("%s is incomplete", k.Root)
	}
	return k, err
}

// Names returns the names of all kernels.
func Names() (names []string) {
	for _, row := range Kernels {
		names = append(names, row.Name)
	}
	return names
}

// newestKernel unpacks the image that a meta package depends on, or that is meta itself, and adds siw, which
// Debian's kernels lack.
func newestKernel(ctx context.Context, a debian.Archive, meta string) (Kernel, error) {
	deps, err := a.Depends(ctx, meta)
	if err != nil {
		return Kernel{}, err
	}
	i := slices.IndexFunc(deps, func(d string) bool { return strings.HasPrefix(d, "linux-image-") })
	if i >= 0 {
		meta = deps[i]
	}
	image, err := a.Find(ctx, meta)
	if err != nil {
		return Kernel{}, err
	}
	parts, err := imageParts(ctx, a, image)
	if err != nil {
		return Kernel{}, err
	}
	root, err := a.Unpack(ctx, image, parts...)
	if err != nil {
		return Kernel{}, err
	}
	unlock, err := debian.Lock(ctx, root+".lock")
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	k, err := openKernel(root, ArchByName(a.Arch))
	if err != nil || k.complete() {
		return k, err
	}
	if err := buildModule(ctx, a, image, k, "siw"); err != nil {
		return Kernel{}, fmt.Errorf("siw: %w", err)
	}
	if err := k.depmod(ctx); err != nil {
		return Kernel{}, err
	}
	files, err := k.ModuleFiles(slices.Concat(rootModules, RDMAModules)...)
	if err == nil {
		err = k.unpackModules(ctx, files)
	}
	if err == nil {
		err = k.depmod(ctx)
	}
	if err == nil && k.Image != k.packed {
		err = unpackImage(ctx, k.packed, k.Image)
	}
	return k, err
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
