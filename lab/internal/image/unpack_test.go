//go:build linux

package image

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/tool"
)

// bzImage returns an image whose kernel is packed.
func bzImage(packed []byte) []byte {
	const setup = 3 // sectors
	b := make([]byte, (setup+1)*512+64)
	b[0x1f1] = setup
	copy(b[0x202:], "HdrS")
	binary.LittleEndian.PutUint32(b[0x248:], 64)
	binary.LittleEndian.PutUint32(b[0x24c:], uint32(len(packed)+4))
	return append(append(b, packed...), "sizeand the rest"...)
}

// TestOpenKernelLink opens a kernel in a cache that is reached by a link: the guest could not follow it.
func TestOpenKernelLink(t *testing.T) {
	root := labtest.Must(filepath.EvalSymlinks(t.TempDir()))(t)
	modules, link := filepath.Join(root, "lib/modules/6.1"), filepath.Join(t.TempDir(), "link")
	labtest.Check(t, os.MkdirAll(modules, 0o755), os.Mkdir(filepath.Join(root, "boot"), 0o755),
		os.WriteFile(filepath.Join(root, "boot/vmlinuz-6.1"), nil, 0o644), os.Symlink(root, link))
	if k, err := openKernel(link, ArchByName("amd64")); k.Modules != modules || err != nil {
		t.Errorf("modules in %s, %v", k.Modules, err)
	}
}

// TestUnpackAgain unpacks the modules of a kernel after an interruption: one is unpacked, and
// modules.dep does not know yet.
func TestUnpackAgain(t *testing.T) {
	k := Kernel{Modules: t.TempDir()}
	for name, content := range map[string]string{"modules.dep": "a.ko.xz: b.ko.xz\nb.ko.xz:\n", "modules.builtin": "", "b.ko": "b"} {
		labtest.Check(t, os.WriteFile(filepath.Join(k.Modules, name), []byte(content), 0o644))
	}
	cmd := exec.Command(tool.Path(t, "xz"), "-c")
	cmd.Stdin = strings.NewReader("a")
	labtest.Check(t, os.WriteFile(filepath.Join(k.Modules, "a.ko.xz"), labtest.Must(cmd.Output())(t), 0o644))
	labtest.Check(t, k.unpackModules(t.Context(), labtest.Must(k.ModuleFiles("a"))(t)))
	for _, name := range []string{"a", "b"} {
		if got, err := os.ReadFile(filepath.Join(k.Modules, name+".ko")); string(got) != name {
			t.Errorf("%q, %v", got, err)
		}
	}
	if Exist(filepath.Join(k.Modules, "a.ko.xz")) {
		t.Error("what is unpacked is there still")
	}
}

func TestUnpackImage(t *testing.T) {
	dir := t.TempDir()
	image, file := filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "vmlinux")
	unpack := func(b []byte) error {
		if err := os.WriteFile(image, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return unpackImage(t.Context(), image, file)
	}
	packed := bzImage([]byte("\xfd7zXZ, but the rest is wrong"))
	for want, b := range map[string][]byte{
		"no bzImage": nil, "is no bzImage": make([]byte, 4096), "truncated": packed[:2048+64+16], "unpack " + file: packed,
	} {
		if err := unpack(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, not %s", err, want)
		}
		if Exist(file) {
			t.Errorf("%s: there is a kernel", want)
		}
	}
	for _, name := range []string{"xz", "zstd"} {
		cmd := exec.Command(tool.Path(t, name), "-c")
		kernel := strings.Repeat("kernel", 1000)
		cmd.Stdin = strings.NewReader(kernel)
		packed, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		if err := unpack(bzImage(packed)); err != nil {
			t.Error(name, err)
		}
		if got, _ := os.ReadFile(file); !bytes.Equal(got, []byte(kernel)) {
			t.Errorf("%s: %d bytes", name, len(got))
		}
	}
}
