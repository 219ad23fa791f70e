//go:build linux

package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/lab/internal/job"
)

type mount struct{ source, target, fstype, data string }

func (m mount) do() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil {
		return err
	}
	var flags uintptr
	if m.fstype == "bind" {
		flags = unix.MS_BIND
	}
	if err := unix.Mount(m.source, m.target, m.fstype, flags, m.data); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.fstype, m.target, err)
	}
	return nil
}

// Places of the programs' root and of the layer that holds writes.
const (
	newRoot = "/root"
	upper   = "/layer/upper"
	work    = "/layer/work"
)

// rootMounts returns the mounts of the programs' root, in their order: the host's root under a layer
// that holds writes, and write, a folder of the host that can be written, if not empty.
func rootMounts(s job.Setup, write string) []mount {
	const opts9P = "trans=virtio,version=9p2000.L,msize=512000"
	host, folder := mount{"root", "/host", "9p", opts9P + ",ro,cache=loose"}, mount{"write", newRoot + write, "9p", opts9P}
	uml := s.Modules == ""
	if uml {
		host, folder = mount{"root", "/host", "hostfs", "/"}, mount{"write", newRoot + write, "hostfs", write}
	}
	mounts, lower := []mount{host, {"layer", "/layer", "tmpfs", "size=75%"}}, "/host"
	if s.Userland {
		lower = "/userland:/host" // a folder within /host would be refused
		mounts = append(mounts, mount{"userland", "/userland", "9p", opts9P + ",ro,cache=loose"})
	}
	mounts = append(mounts,
		mount{"root", newRoot, "overlay", "lowerdir=" + lower + ",upperdir=" + upper + ",workdir=" + work},
		mount{"devtmpfs", newRoot + "/dev", "devtmpfs", ""},
		mount{"devpts", newRoot + "/dev/pts", "devpts", ""},
		mount{"shm", newRoot + "/dev/shm", "tmpfs", ""},
		mount{"proc", newRoot + "/proc", "proc", ""},
		mount{"sysfs", newRoot + "/sys", "sysfs", ""},
		mount{"debugfs", newRoot + "/sys/kernel/debug", "debugfs", ""},
		mount{"run", newRoot + "/run", "tmpfs", ""})
	if !uml {
		mounts = append(mounts,
			mount{"tracefs", newRoot + "/sys/kernel/tracing", "tracefs", ""},
			mount{"bpf", newRoot + "/sys/fs/bpf", "bpf", ""},
			mount{"cgroup2", newRoot + "/sys/fs/cgroup", "cgroup2", ""},
			mount{newRoot + s.Modules, newRoot + "/lib/modules/" + s.Release, "bind", ""})
	}
	if write != "" {
		mounts = append(mounts, folder)
	}
	return mounts
}

// root is the root that programs have, as long as this process is in it.
type root struct {
	mounts []mount
	layer  *os.Root // files that this machine has written
	old    *os.File // the root of before
}

// enterRoot mounts a root and changes to it.
func enterRoot(mounts []mount) (_ *root, err error) {
	for _, m := range mounts {
		if m.fstype == "overlay" {
			if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o755)); err != nil {
				return nil, err
			}
		}
		if err := m.do(); err != nil {
			return nil, err
		}
	}
	r := &root{mounts: mounts}
	if r.layer, err = os.OpenRoot(upper); err != nil {
		return nil, err
	}
	if r.old, err = os.Open("/"); err != nil {
		return nil, err
	}
	return r, errors.Join(unix.Chroot(newRoot), unix.Chdir("/"))
}

// leave returns to the previous root, and unmounts everything.
func (r *root) leave() error {
	defer r.old.Close()
	if err := errors.Join(r.layer.Close(), r.old.Chdir(), unix.Chroot(".")); err != nil {
		return err
	}
	for _, m := range slices.Backward(r.mounts) {
		if err := unix.Unmount(m.target, 0); err != nil {
			return fmt.Errorf("unmount %s: %w", m.target, err)
		}
	}
	return nil
}

// written returns the files that this machine has written at the paths.
func (r *root) written(paths []string) ([]job.Kept, error) {
	all := make([]job.Kept, len(paths))
	for i, p := range paths {
		top := strings.TrimPrefix(p, "/")
		err := fs.WalkDir(r.layer.FS(), top, func(name string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := fs.ReadFile(r.layer.FS(), name)
			if inside, ok := strings.CutPrefix(name, top+"/"); !ok {
				all[i].File = data
			} else if all[i].Folder == nil {
				all[i].Folder = map[string][]byte{inside: data}
			} else {
				all[i].Folder[inside] = data
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return all, nil
}
