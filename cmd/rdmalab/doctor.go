//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/debian"
)

// A finding is the result of a check. Only failures make the lab unusable.
type finding struct {
	failed bool
	text   string
}

func fine(format string, args ...any) finding   { return finding{false, fmt.Sprintf(format, args...)} }
func broken(format string, args ...any) finding { return finding{true, fmt.Sprintf(format, args...)} }

// doctor checks what the lab needs on this machine, and returns the exit status.
func doctor(w io.Writer, c config) (code int) {
	on := archByName(c.arch)
	for _, check := range []struct {
		name string
		find func() finding
	}{
		{"program", func() finding { return checkProgram(on) }},
		{"tools", func() finding { return checkTools(c.kernel, on) }},
		{"compiler", checkChroot},
		{"cache", checkCache},
		{"kernel " + c.kernel, func() finding { return checkKernel(c.kernel, on) }},
		{"processor", checkKVM},
		{"memory", func() finding { return checkMemory(c.mem) }},
		{"dilation", checkFaketime},
	} {
		f := check.find()
		mark := "ok     "
		if f.failed {
			mark, code = "FAILED ", 1
		}
		fmt.Fprintf(w, "%s %-12s %s\n", mark, check.name, f.text)
	}
	return code
}

func checkProgram(on arch) finding {
	if _, err := readSelf(on); err != nil {
		return broken("%v", err)
	}
	return fine("statically linked, can be the guest's first program")
}

func checkTools(kernel string, on arch) finding {
	if err := needMachine(kernel, on); err != nil {
		return broken("%s", strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return fine("QEMU, kmod, iproute2, xz and zstd are installed")
}

// checkChroot checks that siw can be built in a folder of its own, for which ordinary users need
// namespaces.
func checkChroot() finding {
	if os.Getuid() == 0 {
		return fine("root can build siw")
	}
	if err := exec.Command("unshare", "--user", "--map-root-user", "--mount", "true").Run(); err != nil {
		return broken("user namespaces are not allowed (%v), which building siw needs: sysctl kernel.apparmor_restrict_unprivileged_userns=0 kernel.unprivileged_userns_clone=1, or run rdmalab fetch as root once with VERBS_CACHE=%s", err, debian.CacheDir())
	}
	return fine("user namespaces are allowed, for building siw")
}

func checkCache() finding {
	dir := debian.CacheDir()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return broken("%v: set VERBS_CACHE to another folder", err)
	}
	if err := unix.Access(dir, unix.W_OK); err != nil {
		return broken("%s: %v: set VERBS_CACHE to another folder", dir, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return broken("%s: %v", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize) >> 20; free < 3000 {
		return broken("%s has %d MiB left, a kernel and its build take up to 3000: set VERBS_CACHE to another folder", dir, free)
	}
	return fine("%s", dir)
}

func checkKernel(name string, on arch) finding {
	if k, err := cachedKernel(name, on); err == nil {
		return fine("%s is in the cache", k.release)
	}
	return fine("not in the cache: the first run, or rdmalab fetch, takes some minutes")
}

func checkKVM() finding {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	switch {
	case err == nil:
		f.Close()
		return fine("/dev/kvm can be opened; KVM is used if a probe boots")
	case errors.Is(err, os.ErrPermission):
		return fine("no KVM, kernels run 20 times slower: join the group kvm (usermod -aG kvm $USER)")
	}
	return fine("no KVM here, kernels run 20 times slower")
}

func checkMemory(mem int) finding {
	total := totalMem()
	if total < mem+300 {
		return broken("this machine has %d MiB, the guest needs %d: use --mem", total, mem)
	}
	return fine("%d MiB, %d for the guest", total, mem)
}

func checkFaketime() finding {
	if m, _ := filepath.Glob(faketimeLib); len(m) == 0 {
		return fine("libfaketime is missing, --accel dilated will not work: apt-get install faketime")
	}
	return fine("libfaketime is installed, for --accel dilated")
}
