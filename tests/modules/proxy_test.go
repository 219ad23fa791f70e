package modules

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/goverbs/verbs/internal/labtest"
)

const (
	root = "../.." // of the working tree
	path = "github.com/goverbs/verbs"

	// version is the version under which the working tree is published.
	version = "v0.0.0-test"
)

func TestMain(m *testing.M) {
	if os.Getenv("VERBS_LAB") != "" {
		fmt.Println("nothing here needs a kernel, and the lab has no module proxy")
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// inTree is a file of the working tree, by its path there.
type inTree string

func (f inTree) Path() string                 { return string(f) }
func (f inTree) Lstat() (fs.FileInfo, error)  { return os.Lstat(filepath.Join(root, string(f))) }
func (f inTree) Open() (io.ReadCloser, error) { return os.Open(filepath.Join(root, string(f))) }

// publish writes a module proxy that serves the working tree, without the modules nested
// in it, and returns its URL.
func publish(t *testing.T) string {
	t.Helper()
	var files []zip.File
	for name := range strings.SplitSeq(run(t, root, nil, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00") {
		if f := inTree(name); name != "" {
			if _, err := f.Lstat(); err == nil { // otherwise it is deleted, but still in the index
				files = append(files, f)
			}
		}
	}
	var packed bytes.Buffer
	labtest.Check(t, zip.Create(&packed, module.Version{Path: path, Version: version}, files))
	mod := labtest.Must(os.ReadFile(filepath.Join(root, "go.mod")))(t)
	proxy := t.TempDir()
	write(t, filepath.Join(proxy, path, "@v"), map[string]string{
		"list":            version + "\n",
		version + ".info": fmt.Sprintf(`{"Version":%q,"Time":"2026-01-01T00:00:00Z"}`, version),
		version + ".mod":  string(mod),
		version + ".zip":  packed.String(),
	})
	return "file://" + proxy
}

// userEnv returns the environment of a user who can get this version and no other: the
// proxy comes before this machine's downloads and its own proxy. Modules are unpacked
// elsewhere, as the content of this version changes with the working tree.
func userEnv(t *testing.T) []string {
	t.Helper()
	env := strings.Split(strings.TrimSpace(run(t, root, nil, "go", "env", "GOMODCACHE", "GOPROXY")), "\n")
	return append(noWorkspaceEnv(),
		"GOPROXY="+strings.Join([]string{publish(t), "file://" + env[0] + "/cache/download", env[1]}, ","),
		"GOMODCACHE="+t.TempDir(), "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off")
}

// noWorkspaceEnv returns the environment outside this workspace, without other toolchains.
func noWorkspaceEnv() []string {
	return append(os.Environ(), "GOWORK=off", "GOTOOLCHAIN=local", "GOPRIVATE=", "CGO_ENABLED=0")
}

// run runs a program and returns its standard output.
func run(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", cmd, err, out, &stderr)
	}
	return string(out)
}

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	labtest.Check(t, os.MkdirAll(dir, 0o755))
	for name, text := range files {
		labtest.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}
