package rdmadev

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/internal/host"
)

// attrs reads the attributes in a folder of sysfs, and collects errors.
type attrs struct {
	dir  string
	errs []error
}

// exists fails with [verbs.ErrNoDevice] if the folder is not there, or no more.
func (a *attrs) exists() error {
	_, err := host.ListAttrs(a.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return verbs.ErrNoDevice
	}
	return err
}

// scarce returns the first of the errors that means that the process is out of descriptors.
func scarce(errs []error) error {
	if i := slices.IndexFunc(errs, host.TooManyFiles); i >= 0 {
		return errs[i]
	}
	return nil
}

// text returns an attribute without the white space around it, or "" if it is missing or
// cannot be read.
func (a *attrs) text(name string) string {
	text, err := host.ReadAttr(filepath.Join(a.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.errs = append(a.errs, err)
	}
	return text
}

// uint returns an attribute that is a number of a base, or of any if that is 0, up to a
// space or a colon, as in "4: ACTIVE".
func (a *attrs) uint(name string, base, bits int) uint64 {
	text := a.text(name)
	if text == "" {
		return 0
	}
	digits, _, _ := strings.Cut(text, ":")
	v, err := strconv.ParseUint(strings.TrimSpace(digits), base, bits)
	if err != nil {
		a.errs = append(a.errs, a.unexpected(name, text))
	}
	return v
}

// guid returns an attribute that is a GUID.
func (a *attrs) guid(name string) verbs.GUID {
	text := a.text(name)
	if text == "" {
		return verbs.GUID{}
	}
	g, err := verbs.ParseGUID(text)
	if err != nil {
		a.errs = append(a.errs, a.unexpected(name, text))
	}
	return g
}

// link returns the last element of the target of a symbolic link, or "" if there is none.
func (a *attrs) link(name string) string {
	target, err := os.Readlink(filepath.Join(a.dir, name))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// list returns the names in a folder, numbers in order of their values. A folder that is
// missing is empty.
func (a *attrs) list(name string) []string {
	names, err := host.ListAttrs(filepath.Join(a.dir, name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		a.errs = append(a.errs, err)
	}
	slices.SortFunc(names, byNumber)
	return names
}

// byNumber compares names so that mlx5_10 follows mlx5_9.
func byNumber(a, b string) int {
	prefixA, prefixB := strings.TrimRight(a, "0123456789"), strings.TrimRight(b, "0123456789")
	if prefixA != prefixB {
		return strings.Compare(prefixA, prefixB)
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
}

func (a *attrs) unexpected(name, text string) error {
	return fmt.Errorf("%s: unexpected content %q", filepath.Join(a.dir, name), text)
}
