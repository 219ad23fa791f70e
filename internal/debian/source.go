package debian

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path"
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
	a.logf("fetching sources of %s %s, %d KiB", name, r.version, (r.size+1023)/1024)
	f, err := os.CreateTemp(a.dir(), tmpPrefix)
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := a.fetch(ctx, r.mirror+"/"+r.file, r.sha256, f); err != nil {
		return "", err
	}
	if _, err := f.Seek(0, 0); err != nil {
		return "", err
	}
	return r.version, unpackTar(ctx, path.Ext(r.file), f, dir)
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
	r, folder, sums := record{}, "", false
	s := bufio.NewScanner(list)
	s.Buffer(nil, 1<<20)
	for more := true; more; {
		more = s.Scan()
		line := s.Text()
		if !more || line == "" {
			if r.name == name && r.file != "" && (best.name == "" || compareVersions(r.version, best.version) > 0) {
				r.file = path.Join(folder, r.file)
				best = r
			}
			r = record{}
			continue
		}
		if strings.HasPrefix(line, " ") {
			var sum, file string
			var size int64
			if _, err := fmt.Sscan(line, &sum, &size, &file); err == nil && sums && strings.Contains(file, ".orig.tar.") && !strings.HasSuffix(file, ".asc") {
				r.file, r.sha256, r.size = file, sum, size
			}
			continue
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		sums = key == "Checksums-Sha256"
		switch key {
		case "Package":
			r.name = value
		case "Version":
			r.version = value
		case "Directory":
			folder = value
		}
	}
	if err := s.Err(); err != nil {
		return best, err
	}
	if best.name == "" {
		return best, ErrNotFound
	}
	return best, nil
}
