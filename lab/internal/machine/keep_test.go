//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goverbs/verbs/lab/internal/job"
)

func TestKeptPaths(t *testing.T) {
	for _, test := range []struct{ args, env, want string }{
		{"x", "A=b", ""},
		{"x.test -test.v", "", ""},
		{"x.test -test.coverprofile=/none/c -test.gocoverdir=cover", "GOCOVERDIR=/none/all", "/none/c /none/dir/cover /none/all"},
		{"x.test -test.cpuprofile=c -test.memprofile=m -test.outputdir=/none/out", "", "/none/out/c /none/out/m"},
		{"x.test -test.trace=t -test.artifacts=true -test.outputdir=out", "", "/none/dir/out/t /none/dir/out/_artifacts"},
		{"x.test -test.artifacts=false", "GOCOVERDIR=", ""},
	} {
		if got := strings.Join(keptPaths(strings.Fields(test.args), strings.Fields(test.env), "/none/dir"), " "); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.args, test.env, got, test.want)
		}
	}
	dir := t.TempDir()
	if err := os.Symlink(dir, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for env, want := range map[string]string{"": dir + "/t", "GOCOVERDIR=" + dir + "/cover/": dir + "/cover", "GOCOVERDIR=" + dir + "/link": dir} {
		if got := keptPaths([]string{"x", "-test.trace=" + dir + "/link/t"}, []string{env}, "/"); got[len(got)-1] != want {
			t.Errorf("%s: %s, want %s", env, got, want)
		}
	}
}

// TestKeep writes files to their places, and none that was not asked for.
func TestKeep(t *testing.T) {
	host := t.TempDir()
	paths := []string{host + "/profile", host + "/cover", host + "/none"}
	files := []job.Kept{{File: []byte("profile")}, {Folder: map[string][]byte{"a": []byte("cover/a"), "deep/b": []byte("cover/deep/b")}}, {}}
	if err := keep(paths, files); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"profile", "cover/a", "cover/deep/b"} {
		if got, err := os.ReadFile(filepath.Join(host, name)); err != nil || string(got) != name {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := os.Stat(paths[2]); err == nil {
		t.Error("there is a folder that the guest did not send")
	}
	if err := keep(paths[:1], files); err == nil {
		t.Error("a file was written that was not asked for")
	}
}

// FuzzKeep has a guest that sends a file with any name, where the folder that is kept has links out
// of it: what is outside stays as it was.
func FuzzKeep(f *testing.F) {
	for _, name := range []string{"", "a", "a/b", "../outside", "a/../../outside", "/outside", "link/outside", "file", ".", "../kept/a", "\x00", "/\x00"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		dir := t.TempDir()
		folder, outside, profile := filepath.Join(dir, "kept"), filepath.Join(dir, "outside"), filepath.Join(dir, "profile")
		for _, err := range []error{
			os.Mkdir(folder, 0o755), os.WriteFile(outside, []byte("of the host"), 0o644),
			os.Symlink(dir, filepath.Join(folder, "link")), os.Symlink(outside, filepath.Join(folder, "file")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		keep([]string{folder, profile}, []job.Kept{{Folder: map[string][]byte{name: []byte("of the guest")}}, {File: []byte("a profile")}})
		os.RemoveAll(folder)
		os.Remove(profile)
		left, err := os.ReadDir(dir)
		if b, _ := os.ReadFile(outside); err != nil || len(left) != 1 || string(b) != "of the host" {
			t.Errorf("beside the folder there is %v, %v; a file of the host has %q", left, err, b)
		}
	})
}
