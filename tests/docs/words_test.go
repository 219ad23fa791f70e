package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// avoided are words and turns that readers stumble over, or that mean too much.
var avoided = regexp.MustCompile(`(?i)\b(?:whoever|who waits|nobody|somebody|tells|says|gives|told|comes to|stands in|stands? on|anew|for ever|in place of|begun|lest|but for|of which|whatsoever|the like|orphans?|orphaned|kept|sure)\b|, too\.`)

// plain are turns with these words that everybody understands.
var plain = regexp.MustCompile(`(?:says|say)\s+otherwise|(?:one|some|none|all)\s+of\s+which`)

// TestWords: comments, errors and help of the product, and the documents, do without
// the words to avoid.
func TestWords(t *testing.T) {
	check := func(name string, line int, text string) {
		for _, word := range avoided.FindAllString(plain.ReplaceAllString(text, ""), -1) {
			t.Errorf("%s:%d: %q", name, line, word)
		}
	}
	files(t, func(name, text string) {
		switch {
		case filepath.Ext(name) == ".md" && name != "docs/benchmarks.md": // made from notes.md and names of works
			line := 0
			for l := range strings.Lines(text) {
				line++
				check(name, line, l)
			}
		case filepath.Ext(name) == ".go" && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(name, "tests/"):
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, name, text, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			if ast.IsGenerated(file) {
				return
			}
			for _, group := range file.Comments {
				check(name, set.Position(group.Pos()).Line, group.Text())
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
					check(name, set.Position(l.Pos()).Line, l.Value)
				}
				return true
			})
		}
	})
}
