//go:build linux

// Package docs tests what the documents state: that links lead somewhere, that code is that
// of the files it is taken from, and that names exist. It also tests what they promise of the
// packages: which types these expose, where unsafe is, and what programs depend on.
//
// All files that it reads are below the module's root, so go test notices when one changes.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

const root = ".."

// files calls each with every file of the repository with an extension, such as .go, that is
// not built or test data.
func files(t *testing.T, ext string, each func(name, text string)) {
	t.Helper()
	labtest.Check(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "build" || d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case d.Type().IsRegular() && filepath.Ext(path) == ext:
			name := labtest.Must(filepath.Rel(root, path))(t)
			each(name, read(t, name))
		}
		return nil
	}))
}

// read returns the text of a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	return string(labtest.Must(os.ReadFile(filepath.Join(root, name)))(t))
}
