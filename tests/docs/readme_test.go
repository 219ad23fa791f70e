package docs

import (
	"bytes"
	"os"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestReadmeProgram: README.md shows examples/send, which is compiled and run.
func TestReadmeProgram(t *testing.T) {
	readme := labtest.Must(os.ReadFile("../../README.md"))(t)
	program := labtest.Must(os.ReadFile("../../examples/send/main.go"))(t)
	if !bytes.Contains(readme, append([]byte("```go\n"), append(program, "```\n"...)...)) {
		t.Error("the program in README.md differs from examples/send/main.go")
	}
}
