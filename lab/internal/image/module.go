//go:build linux

package image

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/debian"
)

//go:embed module.sh
var moduleScript string

// sources are the drivers that Debian does not build: their folders in drivers/infiniband, and the options of
// the kernel's configuration.
var sources = map[string][2]string{
	"siw":   {"sw/siw", "CONFIG_RDMA_SIW"},
	"erdma": {"hw/erdma", "CONFIG_INFINIBAND_ERDMA"},
}

// BuildLater builds those modules, of a kernel that has been prepared, that Debian does not, if need be.
func (k Kernel) BuildLater(ctx context.Context, names []string) error {
	if k.UML() {
		return nil
	}
	unlock, err := debian.Lock(ctx, k.Root+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	for _, name := range names {
		if _, ours := sources[name]; !ours {
			continue
		}
		if !Exist(k.built(name)) {
			// The folder of a kernel has the name and the version of its package, and is in that of its suite.
			pkg, version, _ := strings.Cut(filepath.Base(k.Root), "_")
			suite, _, _ := strings.Cut(filepath.Base(filepath.Dir(k.Root)), "_")
			a := archive(suite, k.Arch)
			if err := buildModule(ctx, a, debian.Package{Name: pkg, Version: version}, k, name); err != nil {
				return fmt.Errorf("%s for %s: %w", name, k.Release, err)
			}
		} else if _, err := k.ModuleFiles(name); err == nil {
			continue // otherwise depmod was interrupted
		}
		if err := k.depmod(ctx); err != nil {
			return err
		}
	}
	return nil
}

// built returns the file of a module that the lab builds.
func (k Kernel) built(name string) string { return filepath.Join(k.Modules, "updates", name+".ko") }

// buildModule builds a module for a kernel and puts it among the others.
func buildModule(ctx context.Context, a debian.Archive, image debian.Package, k Kernel, name string) error {
	root := k.Root + ".build" // always the same, so that the next build removes it
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	defer os.RemoveAll(root)
	if err := unpackBuild(ctx, a, image, k, root); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "lab: building %s for %s\n", name, k.Release)
	prefix := ""
	if k.Arch.Foreign() {
		prefix = k.Arch.gcc + "-"
	}
	source := sources[name]
	cmd, err := chroot(ctx, root, "sh", "-c", moduleScript, "module.sh", k.Release, source[0], source[1], prefix)
	if err != nil {
		return err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	into := k.built(name)
	if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
		return err
	}
	return os.Rename(filepath.Join(root, "build", name+".ko"), into)
}

// unpackBuild unpacks a kernel's headers, the sources of its modules, and the
// tools to build them.
func unpackBuild(ctx context.Context, a debian.Archive, image debian.Package, k Kernel, root string) error {
	source, err := sourcePackage(image.Version)
	if err != nil {
		return err
	}
	headers := debian.Package{Name: "linux-headers-" + k.Release, Version: image.Version}
	packages := []string{
		source,
		"bash", "coreutils", "dash", "findutils", "grep", "make", "mawk", "sed", "tar", "xz-utils",
	}
	if !k.Arch.Foreign() {
		list, err := a.Closure(ctx, []debian.Package{image}, append(packages, headers.Name+"="+headers.Version)...)
		if err != nil {
			return err
		}
		return a.Extract(ctx, root, list)
	}
	// Only the headers are foreign: their dependencies, such as the compiler, must run here.
	deps, err := a.Depends(ctx, headers.Name)
	if err != nil {
		return err
	}
	for _, d := range deps {
		switch gcc := gccPackage.FindString(d); {
		case gcc != "":
			packages = append(packages, gcc+"-"+k.Arch.gcc)
		case strings.HasPrefix(d, "linux-headers-"), strings.HasPrefix(d, "linux-kbuild-"):
			packages = append(packages, d)
		}
	}
	own := a
	own.Arch = runtime.GOARCH
	list, err := own.Closure(ctx, nil, packages...)
	if err != nil {
		return err
	}
	if err := own.Extract(ctx, root, list); err != nil {
		return err
	}
	return a.Extract(ctx, root, []debian.Package{headers})
}

// sourcePackage returns the package with the sources of a version of the kernel, for Closure.
func sourcePackage(version string) (string, error) {
	v := strings.SplitN(version, ".", 3)
	if len(v) < 3 {
		return "", fmt.Errorf("kernel version %s is not MAJOR.MINOR.PATCH", version)
	}
	return "linux-source-" + v[0] + "." + v[1] + "=" + version, nil
}

// gccPackage matches the compiler in the names of gcc-12, linux-compiler-gcc-12-arm and
// gcc-14-for-host.
var gccPackage = regexp.MustCompile(`gcc-\d+`)

// chroot returns a command that runs inside a folder. It works both for root in a
// container, who may not mount, and for ordinary users, who may not create devices.
func chroot(ctx context.Context, root string, args ...string) (*exec.Cmd, error) {
	// objtool reads the end of its stack from here, to distinguish overflows from
	// other faults.
	self := filepath.Join(root, "proc/self")
	if err := os.MkdirAll(self, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(self, "maps"), []byte("0-0 [stack]\n"), 0o644); err != nil {
		return nil, err
	}
	null := filepath.Join(root, "dev/null")
	attr := &syscall.SysProcAttr{Setpgid: true}
	enter := `exec chroot "$0" "$@"`
	if uid := os.Getuid(); uid == 0 {
		if err := unix.Mknod(null, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
			return nil, err
		}
	} else {
		if err := os.WriteFile(null, nil, 0o644); err != nil {
			return nil, err
		}
		enter = `mount --bind /dev/null "$0/dev/null" && ` + enter
		attr.Cloneflags = unix.CLONE_NEWUSER | unix.CLONE_NEWNS
		attr.UidMappings = []syscall.SysProcIDMap{{HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", enter, root}, args...)...)
	cmd.SysProcAttr = attr
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) } // make has children
	return cmd, nil
}
