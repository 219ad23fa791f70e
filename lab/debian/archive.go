package debian

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// ErrNotFound is returned for a package, or a version of it, that the mirror
// does not have. Mirrors drop old versions.
var ErrNotFound = errors.New("not in the archive")

// Archive is one Debian suite, with a cache folder.
type Archive struct {
	// Suite is "sid", "bookworm-security", ... A suite such as the latter includes the
	// release that it adds to, for packages that only the release has.
	Suite string
	// Arch is the architecture in Debian's terms; empty is amd64.
	Arch string
	// Dir is the cache; empty is [CacheDir].
	Dir string
	// Mirror is the address of the archive; empty is $VERBS_DEBIAN_MIRROR or
	// http://deb.debian.org/debian. For security updates, "-security" is added.
	Mirror string
	// More are packages that the mirror has, but its lists do not name any more, in the format of a list. They are
	// trusted, as they come from the caller.
	More string
	// Keys is the OpenPGP keyring that signs the archive; nil is Debian's.
	Keys []byte
	// Log receives the names of fetched packages; nil discards them.
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
	base := cmp.Or(a.Dir, CacheDir())
	if arch := a.arch(); arch != "amd64" {
		return filepath.Join(base, "debian", a.Suite+"_"+arch)
	}
	return filepath.Join(base, "debian", a.Suite)
}

func (a Archive) arch() string { return cmp.Or(a.Arch, "amd64") }

func (a Archive) logf(format string, args ...any) {
	if a.Log != nil {
		fmt.Fprintf(a.Log, format+"\n", args...)
	}
}

// Find returns the newest version of a package, from package lists that are at
// most a few hours old. Without a network it uses older ones.
func (a Archive) Find(ctx context.Context, name string) (Package, error) {
	r, err := a.find(ctx, name)
	return Package{name, r.version}, err
}

// Depends returns the names of the packages that the newest version of a package
// depends on; of alternatives, the first. For a meta package such as
// linux-image-amd64 it returns the real package.
func (a Archive) Depends(ctx context.Context, name string) (names []string, err error) {
	r, err := a.find(ctx, name)
	for _, alternatives := range dependencies(r.depends) {
		names = append(names, alternatives[0])
	}
	return names, err
}

func (a Archive) find(ctx context.Context, name string) (record, error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return record{}, err
	}
	defer unlock()
	ix, _, err := a.lists(ctx)
	if err != nil {
		return record{}, err
	}
	return ix.newest(Package{Name: name})
}

// Closure returns packages, named as NAME or NAME=VERSION, and all their dependencies, of alternatives
// the first that exists. It leaves out the packages in have. Without VERSION it takes the newest
// versions, which fit together in a suite.
func (a Archive) Closure(ctx context.Context, have []Package, names ...string) (list []Package, err error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = a.retry(ctx, func(ix *index) (err error) {
		list, err = ix.closure(have, names)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packages %s: %w", strings.Join(names, " "), err)
	}
	return list, nil
}

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

// Extract unpacks the packages' files into the folder dir, which it makes if needed.
func (a Archive) Extract(ctx context.Context, dir string, list []Package) error {
	unlock, err := a.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	return a.extract(ctx, dir, list)
}

// extract is Extract for a caller that holds the lock.
func (a Archive) extract(ctx context.Context, dir string, list []Package) error {
	return a.retry(ctx, func(ix *index) error {
		for ; len(list) > 0; list = list[1:] { // a repeated call continues where the last one failed
			p := list[0]
			r, err := ix.newest(p)
			if err == nil {
				err = a.extractPackage(ctx, dir, r)
			}
			if err != nil {
				return fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
			}
		}
		return nil
	})
}

func (a Archive) extractPackage(ctx context.Context, dir string, r record) error {
	return a.fetchFile(ctx, "", r, func(f *os.File) error { return unpackDeb(ctx, f, dir) })
}

// fetchFile fetches the file of a record and calls use with it.
func (a Archive) fetchFile(ctx context.Context, what string, r record, use func(*os.File) error) error {
	a.logf("fetching %s%s %s, %d KiB", what, r.name, r.version, (r.size+1023)/1024)
	f, err := os.CreateTemp(a.dir(), tmpPrefix)
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := a.fetch(ctx, r.mirror+"/"+r.file, r.sha256, r.size, f); err != nil {
		return err
	}
	return use(f)
}

// retry calls do with the package lists. They may name a version that the mirror no longer has: if do
// fails with ErrNotFound, retry fetches them again and repeats it.
func (a Archive) retry(ctx context.Context, do func(*index) error) error {
	ix, fetched, err := a.lists(ctx)
	if err != nil {
		return err
	}
	if err = do(ix); !errors.Is(err, ErrNotFound) || fetched {
		return err
	}
	if uerr := a.update(ctx); uerr != nil {
		return errors.Join(err, uerr)
	}
	if ix, err = a.load(); err != nil {
		return err
	}
	return do(ix)
}
