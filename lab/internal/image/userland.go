//go:build linux

package image

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/verbs/lab/debian"
)

// DefaultUserland is the suite whose programs a foreign guest has.
const DefaultUserland = "bookworm-security"

// userlandPackages are the packages of a userland: programs for the lab and for scripts, a C compiler,
// and peers of this project's tests.
var userlandPackages = []string{
	"bash", "coreutils", "dash", "diffutils", "findutils", "gawk", "grep", "gzip", "iproute2", "kmod", "libc-bin", "mount", "procps", "sed", "tar", "util-linux",
	"gcc", "libc6-dev", "libibverbs-dev", "librdmacm-dev",
	"crun", "curl", "ibverbs-providers", "ibverbs-utils", "perftest", "python3-pyverbs", "rdmacm-utils", "wget",
}

// FetchUserland returns a folder with the programs and libraries of a Debian suite, which hide
// this machine's. No package's scripts are run.
func FetchUserland(ctx context.Context, suite string, on Arch) (string, error) {
	// A new list of packages takes a new folder, as others may run with the old one.
	sum := sha256.Sum256([]byte(strings.Join(userlandPackages, " ")))
	root := filepath.Join(debian.CacheDir(), fmt.Sprintf("userland-%s-%s-%x", suite, on.Name, sum[:4]))
	archive := debian.Archive{Suite: suite, Arch: on.Name, Log: os.Stderr}
	return root, unpackOnce(ctx, archive, root, []string{"bin", "sbin", "lib", "lib64"}, userlandPackages...)
}

// unpackOnce unpacks packages and their dependencies into a folder, unless that exists. The folders
// merged are links to those in /usr.
func unpackOnce(ctx context.Context, a debian.Archive, root string, merged []string, packages ...string) error {
	unlock, err := debian.Lock(ctx, root+".lock")
	if err != nil {
		return err
	}
	defer unlock()
	if Exist(root) {
		return nil
	}
	tmp := root + ".new" // always the same, so that the next run removes it
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	for _, dir := range merged {
		if err := os.MkdirAll(filepath.Join(tmp, "usr", dir), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+dir, filepath.Join(tmp, dir)); err != nil {
			return err
		}
	}
	list, err := a.Closure(ctx, nil, packages...)
	if err == nil {
		err = a.Extract(ctx, tmp, list)
	}
	if err != nil {
		return err
	}
	return os.Rename(tmp, root)
}
