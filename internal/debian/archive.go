package debian

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrNotFound is returned for a package, or a version of it, that the mirror
// does not have. Mirrors drop old versions.
var ErrNotFound = errors.New("not in the archive")

// Archive is one Debian suite, with a cache folder.
type Archive struct {
	// Suite is "sid", "bookworm-security", ...; empty means the suites that the
	// machine itself installs from. A suite such as the latter includes the
	// release that it adds to, for packages that only the release has.
	Suite string
	// Dir is the cache; empty is [CacheDir].
	Dir string
	// Log receives apt-get's progress; nil discards it.
	Log io.Writer
}

// Package is one version of a binary package.
type Package struct{ Name, Version string }

// CacheDir returns $VERBS_CACHE, or "goverbs" in the user's cache folder.
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

// Find returns the newest version of a package, from package lists that are at
// most a few hours old. Without a network it uses older ones.
func (a Archive) Find(ctx context.Context, name string) (Package, error) {
	rec, err := a.show(ctx, name)
	if err != nil {
		return Package{}, err
	}
	return Package{name, field(rec, "Version")}, nil
}

// Depends returns the names of the packages that the newest version of a package
// depends on; of alternatives, the first. For a meta package such as
// linux-image-amd64 it returns the real package.
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

// Closure returns packages, named as NAME or NAME=VERSION, and everything that they
// depend on. It leaves out the packages in have and what those depend on.
func (a Archive) Closure(ctx context.Context, have []Package, names ...string) ([]Package, error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	var status strings.Builder
	for _, p := range have {
		fmt.Fprintf(&status, "Package: %s\nVersion: %s\nStatus: install ok installed\nArchitecture: all\n\n", p.Name, p.Version)
	}
	file := filepath.Join(a.dir(), "status")
	if err := os.WriteFile(file, []byte(status.String()), 0o644); err != nil {
		return nil, err
	}
	defer os.Remove(file)
	args := append([]string{"install", "-qq", "-s", "--no-install-recommends", "-o", "Dir::State::Status=" + file}, names...)
	var out string
	err = a.retry(ctx, func() (err error) { out, err = a.run(ctx, "", "apt-get", args...); return })
	if err != nil {
		return nil, fmt.Errorf("packages %s: %w", strings.Join(names, " "), err)
	}
	var list []Package
	for _, m := range reInst.FindAllStringSubmatch(out, -1) {
		list = append(list, Package{m[1], m[2]})
	}
	return list, nil
}

// reInst matches apt-get's message that it would install a package.
var reInst = regexp.MustCompile(`(?m)^Inst (\S+) \((\S+) `)

// Unpack returns a folder, named after the first package, with the files of all.
// If the folder is in the cache, no network is needed.
func (a Archive) Unpack(ctx context.Context, first Package, more ...Package) (string, error) {
	dir := filepath.Join(a.dir(), first.Name+"_"+strings.ReplaceAll(first.Version, ":", "%3a"))
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
	a.removeStale()
	tmp, err := os.MkdirTemp(a.dir(), tmpPrefix)
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	if err := a.extract(ctx, tmp, append([]Package{first}, more...)); err != nil {
		return "", err
	}
	// The folder appears whole or not at all.
	return dir, os.Rename(tmp, dir)
}

// Extract unpacks the packages' files into the folder dir.
func (a Archive) Extract(ctx context.Context, dir string, list []Package) error {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return a.extract(ctx, dir, list)
}

func (a Archive) extract(ctx context.Context, dir string, list []Package) error {
	tmp, err := os.MkdirTemp(a.dir(), tmpPrefix)
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	args := []string{"download"}
	for _, p := range list {
		args = append(args, p.Name+"="+p.Version)
	}
	err = a.retry(ctx, func() error { _, err := a.run(ctx, tmp, "apt-get", args...); return err })
	if err != nil {
		return fmt.Errorf("packages %s: %w", strings.Join(args[1:], " "), err)
	}
	debs, err := filepath.Glob(filepath.Join(tmp, "*.deb"))
	if len(debs) != len(list) {
		return fmt.Errorf("packages %s: apt-get left %d files", strings.Join(args[1:], " "), len(debs))
	}
	for _, deb := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg-deb", "-x", deb, dir).CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", filepath.Base(deb), err, out)
		}
	}
	return err
}

// retry calls do, which needs package lists. They may name a version that the
// mirror no longer has: only if do fails, retry fetches them again and repeats it.
func (a Archive) retry(ctx context.Context, do func() error) error {
	fetched, err := a.lists(ctx)
	if err != nil {
		return err
	}
	if err = do(); err == nil || fetched || ctx.Err() != nil {
		return err
	}
	if uerr := a.update(ctx); uerr != nil {
		return errors.Join(err, uerr)
	}
	return do()
}
