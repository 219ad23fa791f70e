package docs

import (
	"os"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// table returns the rows of the first table of a Markdown file with exactly these
// columns.
func table(t *testing.T, file string, columns ...string) [][]string {
	t.Helper()
	text := labtest.Must(os.ReadFile(file))(t)
	var rows [][]string
	inside := false
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case strings.Join(cells, "|") == strings.Join(columns, "|"):
			inside = true
		case inside && !strings.HasPrefix(line, "|"):
			return rows
		case inside && strings.Trim(strings.Join(cells, ""), "-:") != "":
			rows = append(rows, cells)
		}
	}
	if len(rows) == 0 {
		t.Fatalf("%s has no table with the columns %v", file, columns)
	}
	return rows
}
