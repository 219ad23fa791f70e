package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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

func (a Archive) log() io.Writer {
	if a.Log == nil {
		return io.Discard
	}
	return a.Log
}

// Find returns the newest version of a package, from package lists that are a
// few hours old at most. Without a network it makes do with older ones.
func (a Archive) Find(ctx context.Context, name string) (Package, error) {
	rec, err := a.show(ctx, name)
	if err != nil {
		return Package{}, err
	}
	return Package{name, field(rec, "Version")}, nil
}

// Depends lists the names of the packages that the newest version of a package
// depends on; of alternatives, the first. That is how a meta package such as
// linux-image-amd64 leads to what it stands for.
func (a Archive) Depends(ctx context.Context, name string) ([]string, error) {
	rec, err := a.show(ctx, name)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, dep := range strings.Split(field(rec, "Depends"), ",") {
		if f := strings.Fields(dep); len(f) > 0 {
			dep, _, _ := strings.Cut(f[0], ":") // "python3:any"
			names = append(names, dep)
		}
	}
	return names, nil
}

// Refresh fetches the package lists now, however fresh they are.
func (a Archive) Refresh(ctx context.Context) error {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return a.update(ctx)
}

// show returns the newest version's record in the package lists.
func (a Archive) show(ctx context.Context, name string) (string, error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := a.lists(ctx); err != nil {
		return "", err
	}
	out, err := a.run(ctx, "", "apt-cache", "show", "--no-all-versions", name)
	if err == nil && out == "" {
		err = ErrNotFound // a name that only other packages provide
	}
	if err != nil {
		return "", fmt.Errorf("package %s: %w", name, err)
	}
	return out, nil
}

func field(record, name string) string {
	for line := range strings.Lines(record) {
		if v, ok := strings.CutPrefix(line, name+": "); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Unpack returns a folder with the package's files. What is in the cache is
// returned at once, without a network.
func (a Archive) Unpack(ctx context.Context, p Package) (string, error) {
	dir := filepath.Join(a.dir(), p.Name+"_"+strings.ReplaceAll(p.Version, ":", "%3a"))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	unlock, err := a.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another process was faster
	}
	a.sweep()
	tmp, err := os.MkdirTemp(a.dir(), tmpPrefix)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := a.download(ctx, p, tmp); err != nil {
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
	// The folder appears whole or not at all.
	return dir, os.Rename(root, dir)
}

// download fetches the package file into dir. Lists may name a version that
// the mirror has dropped since: then, and only then, they are fetched anew.
func (a Archive) download(ctx context.Context, p Package, dir string) error {
	fetched, err := a.lists(ctx)
	if err != nil {
		return err
	}
	_, err = a.run(ctx, dir, "apt-get", "download", p.Name+"="+p.Version)
	if err == nil || fetched || ctx.Err() != nil {
		return err
	}
	if uerr := a.update(ctx); uerr != nil {
		return errors.Join(err, uerr)
	}
	_, err = a.run(ctx, dir, "apt-get", "download", p.Name+"="+p.Version)
	return err
}
