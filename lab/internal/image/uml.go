//go:build linux

package image

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

// User-mode Linux is a kernel that is an ordinary program. It runs the code of its
// processes on this machine's processor at full speed, whereas QEMU's emulation takes
// ten times as long and not in proportion. But a system call takes some 50 µs, and the
// threads of a process never run at the same time.

//go:embed uml.config
var umlConfig string

//go:embed uml.sh
var umlScript string

// umlPrefix begins the names of the folders that hold User-mode Linux.
const umlPrefix = "uml_"

// newestUML builds the sources that a meta package depends on.
func newestUML(ctx context.Context, a debian.Archive, meta string) (Kernel, error) {
	source, err := a.Find(ctx, meta)
	if err != nil {
		return Kernel{}, err
	}
	sources, err := sourcePackage(source.Version)
	if err != nil {
		return Kernel{}, err
	}
	root := filepath.Join(debian.CacheDir(), umlPrefix+source.Version+"_"+umlKey())
	unlock, err := debian.Lock(ctx, root+".lock")
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	if k, err := openUML(root); err == nil {
		return k, nil
	}
	build := root + ".build" // always the same, so that the next build removes it
	if err := os.RemoveAll(build); err != nil {
		return Kernel{}, err
	}
	defer func() {
		if ctx.Err() != nil {
			fmt.Fprintln(os.Stderr, "lab: removing what was unpacked for the build, which takes a minute")
		}
		os.RemoveAll(build)
	}()
	fmt.Fprintf(os.Stderr, "lab: fetching a compiler and the kernel's sources, to build User-mode Linux %s once\n", source.Version)
	list, err := a.Closure(ctx, nil, sources,
		"bash", "bc", "bison", "coreutils", "dash", "diffutils", "findutils", "flex", "gcc", "grep",
		"gzip", "libc6-dev", "make", "mawk", "perl-base", "sed", "tar", "xz-utils")
	if err != nil {
		return Kernel{}, err
	}
	if err := a.Extract(ctx, build, list); err != nil {
		return Kernel{}, err
	}
	if err := os.WriteFile(filepath.Join(build, "uml.config"), []byte(umlConfig), 0o644); err != nil {
		return Kernel{}, err
	}
	fmt.Fprintf(os.Stderr, "lab: building User-mode Linux %s, which takes many minutes\n", source.Version)
	cmd, err := chroot(ctx, build, "sh", "-c", umlScript)
	if err != nil {
		return Kernel{}, err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return Kernel{}, fmt.Errorf("%w\n%s", err, Tail(out))
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return Kernel{}, err
	}
	for _, f := range []string{"linux", "release"} { // release is last: openUML requires it
		if err := os.Rename(filepath.Join(build, "build", f), filepath.Join(root, f)); err != nil {
			return Kernel{}, err
		}
	}
	return openUML(root)
}

// umlKey returns a key of the configuration and script with which the kernel is built.
func umlKey() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(umlConfig+umlScript)))[:12]
}

// openUML opens a built kernel. It fails if the configuration has changed since.
func openUML(root string) (Kernel, error) {
	if !strings.HasSuffix(root, umlKey()) {
		return Kernel{}, fmt.Errorf("%s has another configuration", root)
	}
	release, err := os.ReadFile(filepath.Join(root, "release"))
	return Kernel{Root: root, Arch: ArchByName("amd64"), Image: filepath.Join(root, "linux"), Release: strings.TrimSpace(string(release))}, err
}
