package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestHeaderLicences has a row in licences.md for each header that the generators read.
func TestHeaderLicences(t *testing.T) {
	page := string(labtest.Must(os.ReadFile("licences.md"))(t))
	for file, folder := range map[string]string{"../gen/headers.go": "", "../gen/ifc/lists.go": "linux/mlx5/"} {
		headers := regexp.MustCompile(`"([^"]+\.h)"`).FindAllStringSubmatch(string(labtest.Must(os.ReadFile(file))(t)), -1)
		if len(headers) == 0 {
			t.Errorf("no headers in %s", file)
		}
		for _, h := range headers {
			if row := "\n| `" + folder + h[1] + "` | `"; !strings.Contains(page, row) {
				t.Errorf("licences.md has no row of %s%s", folder, h[1])
			}
		}
	}
}
