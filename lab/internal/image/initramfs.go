//go:build linux

package image

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"

	"github.com/cavaliergopher/cpio"

	"github.com/goverbs/verbs/lab/internal/job"
)

// WriteInitramfs writes the guest's first root: this program as /init, the setup, and the files of the
// modules that mount the host's root, and of the modules named in more. The modules named in devices are
// not in it: s.Late gets their paths, and /init loads them from the host's root.
func WriteInitramfs(file string, k Kernel, s job.Setup, devices []string, more ...string) error {
	var early []string
	if !k.UML() {
		if s.Number != 0 {
			devices = append(slices.Clip(devices), "virtio_net")
		}
		var err error
		if early, err = k.ModuleFiles(slices.Concat(rootModules, more)...); err != nil {
			return err
		}
		if s.Late, err = k.ModuleFiles(devices...); err != nil {
			return err
		}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer f.Close()
	w := cpio.NewWriter(f)
	add := func(name string, mode cpio.FileMode, data []byte) error {
		if err := w.WriteHeader(&cpio.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, dir := range []string{"userland", "dev", "proc", "sys", "host", "layer", "root"} {
		if err := add(dir, cpio.TypeDir|0o755, nil); err != nil {
			return err
		}
	}
	for _, m := range early {
		data, err := os.ReadFile(filepath.Join(k.Modules, m))
		if err != nil {
			return err
		}
		if err := add(filepath.Base(m), cpio.TypeReg|0o644, data); err != nil {
			return err
		}
		s.Early = append(slices.Clip(s.Early), filepath.Base(m))
	}
	self, err := ReadSelf(k.Arch)
	if err != nil {
		return err
	}
	if err := add("init", cpio.TypeReg|0o755, self); err != nil {
		return err
	}
	text, err := json.Marshal(s)
	if err != nil {
		return err
	}
	if err := add(job.SetupFile, cpio.TypeReg|0o644, text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return f.Close()
}
