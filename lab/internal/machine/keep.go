//go:build linux

package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/lab/internal/job"
)

// keptFlags are the flags of tests that name files, in the folder -test.outputdir.
var keptFlags = []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"}

// keptPaths returns the files and folders that the caller of a program expects: a test's profiles and
// artifacts, and coverage. dir is the program's working directory.
func keptPaths(args, env []string, dir string) (paths []string) {
	flags := map[string]string{}
	for _, a := range args[1:] {
		if name, ok := strings.CutPrefix(a, "-test."); ok {
			name, value, _ := strings.Cut(name, "=")
			flags[name] = value
		}
	}
	within := func(dir, path string) string {
		if filepath.IsAbs(path) {
			return filepath.Clean(path)
		}
		return filepath.Join(dir, path)
	}
	output := within(dir, flags["outputdir"])
	add := func(dir, path string) {
		if path == "" {
			return
		}
		path = within(dir, path)
		// The guest finds written files by their names without links.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real
		} else if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
			path = filepath.Join(real, filepath.Base(path))
		}
		paths = append(paths, path)
	}
	for _, name := range keptFlags {
		add(output, flags[name])
	}
	add(dir, flags["gocoverdir"])
	if a, ok := flags["artifacts"]; ok && a != "false" {
		add(output, "_artifacts")
	}
	for _, v := range env {
		if coverage, ok := strings.CutPrefix(v, "GOCOVERDIR="); ok {
			add(dir, coverage)
		}
	}
	return paths
}

// keep writes the files that the program wrote at the paths. In a folder the guest chooses their
// names, so that writeIn confines them.
func keep(paths []string, files []job.Kept) error {
	if len(files) != len(paths) {
		return fmt.Errorf("the guest sent files of %d paths, not of %d", len(files), len(paths))
	}
	for i, path := range paths {
		if data := files[i].File; data != nil {
			if err := writeIn(filepath.Dir(path), map[string][]byte{filepath.Base(path): data}); err != nil {
				return fmt.Errorf("file %q of the guest: %w", path, err)
			}
		}
		if err := writeIn(path, files[i].Folder); err != nil {
			return fmt.Errorf("folder %q of the guest: %w", path, err)
		}
	}
	return nil
}

// writeIn writes files to a folder, which it makes if there are some. A name or a link that leads out
// of the folder is an error.
func writeIn(dir string, files map[string][]byte) error {
	if len(files) == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for name, data := range files {
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := root.WriteFile(name, data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
