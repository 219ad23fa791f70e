package interop

import (
	"debug/elf"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestScratch runs verbs in a root that contains only verbs, /dev and /sys.
func TestScratch(t *testing.T) {
	labtest.RequireKernel(t)
	verbs := built(t, "verbs")
	f := labtest.Must(elf.Open(verbs))(t)
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is dynamically linked: it has a %v segment", verbs, p.Type)
		}
	}
	if out, err := exec.Command("ldd", verbs).CombinedOutput(); err == nil || !strings.Contains(string(out), "not a dynamic executable") {
		t.Errorf("ldd says %v: %s", err, out)
	}

	root := t.TempDir()
	labtest.Check(t, copyFile(filepath.Join(root, "verbs"), verbs))
	for _, dir := range []string{"/dev", "/sys"} {
		target := filepath.Join(root, dir)
		labtest.Check(t, os.Mkdir(target, 0o755))
		labtest.Check(t, unix.Mount(dir, target, "", unix.MS_BIND|unix.MS_REC, ""))
		defer unix.Unmount(target, unix.MNT_DETACH)
	}
	for args, want := range map[string]string{
		"devices":      "rxe0",
		"info --json":  `"hca_id": "rxe0"`,
		"demo -s text": "SUCCESS, source and destination buffers match",
	} {
		cmd := exec.Command("/verbs", strings.Fields(args)...)
		cmd.SysProcAttr = &unix.SysProcAttr{Chroot: root}
		cmd.Dir, cmd.Env = "/", []string{}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("verbs %s: %v\n%s", args, err, out)
		}
	}
}

func copyFile(to, from string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return err
	}
	return dst.Close()
}
