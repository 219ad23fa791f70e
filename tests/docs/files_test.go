package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// files calls each with every file of the repository that is not built or test data.
func files(t *testing.T, each func(name, text string)) {
	t.Helper()
	onHost(t)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "build" || d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case d.Type().IsRegular() && (filepath.Ext(path) == ".go" || filepath.Ext(path) == ".md"):
			name, err := filepath.Rel("../..", path)
			if err != nil {
				return err
			}
			each(filepath.ToSlash(name), string(labtest.Must(os.ReadFile(path))(t)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
