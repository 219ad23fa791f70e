package docs

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestHeaderLicences has a row in licences.md for each header that the generator reads.
func TestHeaderLicences(t *testing.T) {
	source := labtest.Must(os.ReadFile("../gen/headers.go"))(t)
	page := string(labtest.Must(os.ReadFile("licences.md"))(t))
	headers := regexp.MustCompile(`"(rdma/[^"]+\.h)"`).FindAllSubmatch(source, -1)
	if len(headers) == 0 {
		t.Fatal("no headers in gen/headers.go")
	}
	for _, h := range headers {
		if row := "\n| `" + string(h[1]) + "` | `"; !strings.Contains(page, row) {
			t.Errorf("licences.md has no row of %s", h[1])
		}
	}
}
