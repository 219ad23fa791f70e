package debian

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNotFound is returned for a package, or a version of it, that the mirror
// does not have. Mirrors drop old versions.
var ErrNotFound = errors.New("not in the archive")

// Archive is one Debian suite seen through a cache folder.
type Archive struct {
	// Suite is "sid", "bookworm-security", ...; empty is whatever the machine
	// itself installs from.
	Suite string
	// Dir is the cache; empty is [CacheDir].
	Dir string
	// Log shows apt-get's progress; nil is silence.
	Log io.Writer
}

// Package is one version of a binary package.
type Package struct{ Name, Version string }

// CacheDir is $VERBS_CACHE, or "goverbs" in the user's cache folder.
func CacheDir() string {
	if dir := os.Getenv("VERBS_CACHE"); dir != "" {
		return dir
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "goverbs")
}

func (a Archive) dir() string {
	base := a.Dir
	if base == "" {
		base = CacheDir()
	}
	suite := a.Suite
	if suite == "" {
		suite = "host"
	}
	return filepath.Join(base, "debian", suite)
}

// Lock serialises processes that share the cache; the result unlocks.
func Lock(file string) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", file, err)
	}
	return func() { f.Close() }, nil
}

// Find asks the mirror for the newest version of a package and, for meta
// packages, follows nothing: see Depends.
func (a Archive) Find(ctx context.Context, name string) (Package, error) {
	rec, err := a.show(ctx, name)
	if err != nil {
		return Package{}, err
	}
	return Package{name, field(rec, "Version")}, nil
}

// Depends lists the names of the packages that the newest version of a package
// depends on.
func (a Archive) Depends(ctx context.Context, name string) ([]string, error) {
	rec, err := a.show(ctx, name)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, dep := range strings.Split(field(rec, "Depends"), ",") {
		if f := strings.Fields(dep); len(f) > 0 {
			names = append(names, f[0])
		}
	}
	return names, nil
}

func (a Archive) show(ctx context.Context, name string) (string, error) {
	unlock, err := Lock(filepath.Join(a.dir(), "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if err := a.update(ctx); err != nil {
		return "", err
	}
	out, err := a.command(ctx, "apt-cache", "show", "--no-all-versions", name).Output()
	if err != nil || len(out) == 0 {
		return "", fmt.Errorf("package %s: %w", name, ErrNotFound)
	}
	return string(out), nil
}

func field(record, name string) string {
	for line := range strings.Lines(record) {
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Unpack returns a folder with the package's files, fetching it first if it is
// not in the cache.
func (a Archive) Unpack(ctx context.Context, p Package) (string, error) {
	dir := filepath.Join(a.dir(), p.Name+"_"+strings.ReplaceAll(p.Version, ":", "%3a"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := Lock(filepath.Join(a.dir(), "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another process was faster
	}
	if err := a.update(ctx); err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(a.dir(), "tmp-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	get := a.command(ctx, "apt-get", "download", p.Name+"="+p.Version)
	get.Dir = tmp
	var stderr bytes.Buffer
	get.Stdout, get.Stderr = a.log(), io.MultiWriter(&stderr, a.log())
	if err := get.Run(); err != nil {
		if strings.Contains(stderr.String(), "was not found") || strings.Contains(stderr.String(), "Unable to locate") {
			err = ErrNotFound
		}
		return "", fmt.Errorf("package %s version %s: %w", p.Name, p.Version, err)
	}
	debs, _ := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != 1 {
		return "", fmt.Errorf("package %s: apt-get left %d files", p.Name, len(debs))
	}
	root := filepath.Join(tmp, "root")
	if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", debs[0], root).CombinedOutput(); err != nil {
		return "", fmt.Errorf("unpack %s: %w\n%s", p.Name, err, out)
	}
	return dir, os.Rename(root, dir)
}

func (a Archive) log() io.Writer {
	if a.Log == nil {
		return io.Discard
	}
	return a.Log
}
