package main

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/debian"
)

// User-mode Linux is a kernel that is an ordinary program. It runs the code of
// its processes on the machine's own processor, at full speed, where QEMU's
// emulation takes ten times as long and not in proportion; but a system call
// costs it some 50 µs, and threads of a process never run at the same time.

//go:embed uml.config
var umlConfig string

//go:embed uml.sh
var umlScript string

// uml says whether this is User-mode Linux: all is built in, there are no
// modules.
func (k kernel) uml() bool { return k.modules == "" }

// umlPrefix begins the names of folders with such kernels.
const umlPrefix = "uml_"

// newestUML follows a meta package to the kernel's sources, and builds them.
func newestUML(ctx context.Context, a debian.Archive, meta string) (kernel, error) {
	source, err := a.Find(ctx, meta)
	if err != nil {
		return kernel{}, err
	}
	v := strings.SplitN(source.Version, ".", 3)
	if len(v) < 3 {
		return kernel{}, fmt.Errorf("kernel version %s is not MAJOR.MINOR.PATCH", source.Version)
	}
	root := filepath.Join(debian.CacheDir(), umlPrefix+source.Version+"_"+umlKey())
	unlock, err := debian.Lock(ctx, root+".lock")
	if err != nil {
		return kernel{}, err
	}
	defer unlock()
	if k, err := openUML(root); err == nil {
		return k, nil
	}
	build := root + ".build" // the same always, so that none is left for good
	if err := os.RemoveAll(build); err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(build)
	list, err := a.Closure(ctx, nil, "linux-source-"+v[0]+"."+v[1]+"="+source.Version,
		"bash", "bc", "bison", "coreutils", "dash", "diffutils", "findutils", "flex", "gcc", "grep",
		"gzip", "libc6-dev", "make", "mawk", "perl-base", "sed", "tar", "xz-utils")
	if err != nil {
		return kernel{}, err
	}
	if err := a.Extract(ctx, build, list); err != nil {
		return kernel{}, err
	}
	if err := os.WriteFile(filepath.Join(build, "uml.config"), []byte(umlConfig), 0o644); err != nil {
		return kernel{}, err
	}
	fmt.Fprintf(os.Stderr, "lab: building User-mode Linux %s\n", source.Version)
	cmd, err := chroot(ctx, build, "sh", "-c", umlScript)
	if err != nil {
		return kernel{}, err
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return kernel{}, fmt.Errorf("%w\n%s", err, tail(out))
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		return kernel{}, err
	}
	for _, f := range []string{"linux", "release"} { // the second makes it complete
		if err := os.Rename(filepath.Join(build, "build", f), filepath.Join(root, f)); err != nil {
			return kernel{}, err
		}
	}
	return openUML(root)
}

// umlKey changes with what else than the sources makes the kernel what it is.
func umlKey() string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(umlConfig+umlScript)))[:12]
}

// openUML opens a kernel that was built, of the present configuration.
func openUML(root string) (kernel, error) {
	if !strings.HasSuffix(root, umlKey()) {
		return kernel{}, fmt.Errorf("%s has another configuration", root)
	}
	release, err := os.ReadFile(filepath.Join(root, "release"))
	return kernel{root: root, image: filepath.Join(root, "linux"), release: strings.TrimSpace(string(release))}, err
}

// umlCommand prepares the machine. Its ports are serial lines, in order: the
// ends, for it to inherit, of connections to the sockets. LAB_UML, which the
// kernel does not know, comes into the environment of process 1.
func umlCommand(ctx context.Context, k kernel, opt options, dir, initramfs, _ string) (*exec.Cmd, error) {
	console, err := os.Create(filepath.Join(dir, "console"))
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, k.image, "mem="+strconv.Itoa(opt.mem)+"M", "ncpus="+strconv.Itoa(opt.cpus),
		"seccomp=on", "initrd="+initramfs, "uml_dir="+dir, "umid=machine", "con=null", "con0=null,fd:1",
		"console=tty0", "loglevel=5", "panic=-1", "oops=panic", "LAB_UML=1")
	cmd.Stdout = console
	for i, name := range ports {
		c, err := net.Dial("unix", filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		f, err := c.(*net.UnixConn).File()
		c.Close()
		if err != nil {
			return nil, err
		}
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
		cmd.Args = append(cmd.Args, fmt.Sprintf("ssl%d=fd:%d", i, 3+i))
	}
	return cmd, nil
}

// openLine opens the serial line of a port, in the guest.
func openLine(port int) (*os.File, error) {
	f, err := os.OpenFile(fmt.Sprintf("/dev/ttyS%d", port), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	raw := unix.Termios{Cflag: unix.CS8 | unix.CREAD | unix.CLOCAL | unix.B38400}
	raw.Cc[unix.VMIN] = 1
	if err := unix.IoctlSetTermios(int(f.Fd()), unix.TCSETS, &raw); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return f, nil
}
