//go:build linux

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// keptFlags are the flags of tests that name files, in the folder -test.outputdir.
var keptFlags = []string{"coverprofile", "cpuprofile", "memprofile", "blockprofile", "mutexprofile", "trace"}

// keptPaths returns the files and folders whose content the caller of a program expects to find:
// a test's profiles and artifacts, and coverage. dir is the program's.
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
			return path
		}
		return filepath.Join(dir, path)
	}
	output := within(dir, flags["outputdir"])
	add := func(dir, path string) {
		if path == "" {
			return
		}
		path = within(dir, path)
		// The guest finds what was written by its name without links.
		if real, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil {
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

// written returns the files at the paths below the layer that holds the guest's writes.
func written(layer *os.Root, paths []string) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, p := range paths {
		err := fs.WalkDir(layer.FS(), strings.TrimPrefix(p, "/"), func(name string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				files["/"+name], err = fs.ReadFile(layer.FS(), name)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return files, nil
}

// keep writes the files that the program wrote at the paths. The guest chooses their names, so that each
// is one of the paths or a file inside of the folder that one is.
func (r *result) keep(paths []string) error {
	for name, data := range r.Files {
		i := slices.IndexFunc(paths, func(p string) bool { return name == p || strings.HasPrefix(name, p+"/") })
		if i < 0 {
			return fmt.Errorf("the guest sent %q, which is not to be kept", name)
		}
		dir, file := filepath.Dir(paths[i]), filepath.Base(paths[i])
		if name != paths[i] {
			dir, file = paths[i], name[len(paths[i])+1:]
		}
		if err := writeIn(dir, file, data); err != nil {
			return fmt.Errorf("file %q of the guest: %w", name, err)
		}
	}
	return nil
}

// writeIn writes a file inside of a folder, which it makes.
func writeIn(dir, file string, data []byte) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if err := root.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return root.WriteFile(file, data, 0o644)
}

const timeoutFlag = "-test.timeout="

// shorten reduces a test's time by what has passed since begun, so that it ends by itself, and
// prints its stacks, before go test loses patience.
func shorten(args []string, begun time.Time) ([]string, error) {
	i := slices.IndexFunc(args, func(a string) bool { return strings.HasPrefix(a, timeoutFlag) })
	if i < 0 || begun.IsZero() {
		return args, nil
	}
	whole, err := time.ParseDuration(strings.TrimPrefix(args[i], timeoutFlag))
	if err != nil || whole <= 0 {
		return args, nil
	}
	left := (whole - time.Since(begun)).Truncate(time.Millisecond)
	if left <= 0 {
		return nil, fmt.Errorf("the test's time of %v has passed before it could start", whole)
	}
	args = slices.Clone(args)
	args[i] = timeoutFlag + left.String()
	return args, nil
}
