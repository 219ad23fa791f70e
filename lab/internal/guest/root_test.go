//go:build linux

package guest

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/goverbs/verbs/lab/internal/job"
)

// TestRootMounts mounts nothing before that which it is in, and for each kind of machine what is
// its own.
func TestRootMounts(t *testing.T) {
	qemu := job.Setup{Release: "6.12", Modules: "/cache/lib/modules/6.12"}
	foreign := qemu
	foreign.Userland = true
	for _, test := range []struct {
		name   string
		s      job.Setup
		write  string
		has    []mount
		lacks  string // a target
		layers string
	}{
		{"QEMU", qemu, "", []mount{{"/root/cache/lib/modules/6.12", "/root/lib/modules/6.12", "bind", ""}, {"cgroup2", "/root/sys/fs/cgroup", "cgroup2", ""}}, "/userland", "lowerdir=/host,"},
		{"userland", foreign, "", nil, "", "lowerdir=/userland:/host,"},
		{"a folder", qemu, "/tmp/w", []mount{{"write", "/root/tmp/w", "9p", "trans=virtio,version=9p2000.L,msize=512000"}}, "/userland", "lowerdir=/host,"},
		{"User-mode Linux", job.Setup{Release: "7.3"}, "/tmp/w", []mount{{"root", "/host", "hostfs", "/"}, {"write", "/root/tmp/w", "hostfs", "/tmp/w"}}, "/root/sys/fs/bpf", "lowerdir=/host,"},
	} {
		mounts := rootMounts(test.s, test.write)
		at := func(target string) int {
			return slices.IndexFunc(mounts, func(m mount) bool { return m.target == target })
		}
		for _, m := range test.has {
			if !slices.Contains(mounts, m) {
				t.Errorf("%s: no %q in %q", test.name, m, mounts)
			}
		}
		if at(test.lacks) >= 0 {
			t.Errorf("%s: %s is mounted", test.name, test.lacks)
		}
		for i, m := range mounts {
			inside := slices.IndexFunc(mounts, func(o mount) bool { return strings.HasPrefix(o.target, m.target+"/") })
			if inside >= 0 && inside < i {
				t.Errorf("%s: %s hides %s", test.name, m.target, mounts[inside].target)
			}
			if m.fstype == "9p" && m.source != "write" && !strings.Contains(m.data, ",ro,") {
				t.Errorf("%s: %s can be written", test.name, m.target)
			}
		}
		for _, dir := range job.OwnFolders { // the host refuses programs in these, and no others
			if i := at("/root" + dir); i < 0 || mounts[i].fstype != "tmpfs" {
				t.Errorf("%s: %s is the host's", test.name, dir)
			}
		}
		for _, m := range mounts {
			if dir, ok := strings.CutPrefix(m.target, "/root"); ok && m.fstype == "tmpfs" && !slices.Contains(job.OwnFolders, dir) {
				t.Errorf("%s: %s hides the host's files", test.name, dir)
			}
		}
		root := mounts[at("/root")]
		if !strings.HasPrefix(root.data, test.layers) || at("/host") > at("/root") || at("/layer") > at("/root") {
			t.Errorf("%s: %q", test.name, mounts)
		}
	}
}

// TestWritten finds at the paths that are kept what is in the layer, and nothing beside them.
func TestWritten(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"tmp/profile", "tmp/cover/a", "tmp/cover/deep/b", "tmp/coverage", "other"} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	layer, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer layer.Close()
	files, err := (&root{layer: layer}).written([]string{"/tmp/profile", "/tmp/cover", "/tmp/none"})
	want := []job.Kept{{File: []byte("tmp/profile")}, {Folder: map[string][]byte{"a": []byte("tmp/cover/a"), "deep/b": []byte("tmp/cover/deep/b")}}, {}}
	if err != nil || !reflect.DeepEqual(files, want) {
		t.Errorf("%q: %v", files, err)
	}
}
