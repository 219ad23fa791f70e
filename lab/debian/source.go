package debian

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
)

// Source unpacks the upstream sources of a source package into the folder dir, which it makes if
// needed, and returns the package's version.
func (a Archive) Source(ctx context.Context, name, dir string) (version string, err error) {
	unlock, err := a.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	r, err := a.findSource(ctx, name)
	if err != nil {
		return "", fmt.Errorf("sources of %s: %w", name, err)
	}
	return r.version, a.fetchFile(ctx, "sources of ", r, func(f *os.File) error {
		if _, err := f.Seek(0, 0); err != nil {
			return err
		}
		return unpackTar(ctx, path.Ext(r.file), f, dir)
	})
}

// findSource finds the archive of upstream's sources in the newest version of a source package.
func (a Archive) findSource(ctx context.Context, name string) (best record, err error) {
	err = a.signedList(ctx, a.Suite, "main/source/Sources", func(list io.Reader) error {
		best, err = newestSource(list, name)
		return err
	})
	best.mirror = a.mirror(a.Suite)
	return best, err
}

// newestSource finds the archive in a list of source packages.
func newestSource(list io.Reader, name string) (best record, err error) {
	err = paragraphs(list, func(fields map[string]string) error {
		version := fields["Version"]
		if fields["Package"] != name || best.name != "" && !newer(version, best.version) {
			return nil
		}
		for line := range strings.Lines(fields["Checksums-Sha256"]) {
			f := strings.Fields(line)
			if len(f) != 3 || !strings.Contains(f[2], ".orig.tar.") || strings.HasSuffix(f[2], ".asc") {
				continue
			}
			size, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return fmt.Errorf("size of %s: %w", f[2], err)
			}
			best = record{name: name, version: version, file: path.Join(fields["Directory"], f[2]), sha256: f[0], size: size}
		}
		return nil
	})
	if err == nil && best.name == "" {
		err = ErrNotFound
	}
	return best, err
}
