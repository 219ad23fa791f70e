//go:build linux

package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/lab/internal/image"
)

// TestHiddenPaths refuses a program, a working directory and a profile in a folder of this machine that
// the guest does not see.
func TestHiddenPaths(t *testing.T) {
	hidden, err := os.MkdirTemp("/dev/shm", "lab-test-")
	if err != nil {
		t.Skip(err)
	}
	defer os.RemoveAll(hidden)
	shared := t.TempDir()
	for _, dir := range []string{hidden, shared} {
		if err := os.WriteFile(filepath.Join(dir, "x.test"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(shared, "link")
	if err := os.Symlink(hidden, link); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ program, profile, dir, write, want string }{
		{shared, "c", shared, "", ""},
		{shared, "/dev/null", "/dev/shm", "", ""},
		{shared, "/running/c", "/sys/class", "", ""},
		{hidden, "c", shared, "", "program " + hidden + "/x.test: the guest has an empty /dev/shm of its own"},
		{link, "c", shared, "", "program " + link + "/x.test: "},
		{shared, "c", hidden, "", "working directory " + hidden + ": "},
		{shared, hidden + "/c", shared, "", "output file " + hidden + "/c: "},
		{shared, link + "/c", shared, "", "output file " + hidden + "/c: "},
		{shared, "/run/user/c", shared, "", "output file /run/user/c: the guest has an empty /run of its own"},
		{hidden, hidden + "/c", hidden, hidden, ""},
		{link, "c", link, link, ""},
		{hidden, "c", shared, hidden + "/other", "program " + hidden + "/x.test: "},
	} {
		args := []string{test.program + "/x.test", "-test.cpuprofile=" + test.profile}
		_, err := NewTask(image.Kernel{}, Options{}, test.write, args, nil, test.dir)
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%+v: %v", test, err)
		}
	}
}

func TestShorten(t *testing.T) {
	for _, test := range []struct {
		timeout      string
		begun        time.Duration // ago; 0 for never
		least, most  time.Duration
		never, error bool
	}{
		{"10m0s", time.Minute, 8 * time.Minute, 9 * time.Minute, false, false},
		{"10m0s", 0, 10 * time.Minute, 10 * time.Minute, true, false},
		{"0s", time.Minute, 0, 0, false, false},
		{"1m0s", time.Minute, 0, 0, false, true},
	} {
		var begun time.Time
		if !test.never {
			begun = time.Now().Add(-test.begun)
		}
		args, err := shorten([]string{"x.test", TimeoutFlag + test.timeout, "-test.v"}, begun)
		if test.error != (err != nil) {
			t.Errorf("%+v: %v", test, err)
		}
		if err != nil {
			continue
		}
		got, err := time.ParseDuration(strings.TrimPrefix(args[1], TimeoutFlag))
		if err != nil || got < test.least || got > test.most {
			t.Errorf("%+v: %v, %v", test, got, err)
		}
	}
}
