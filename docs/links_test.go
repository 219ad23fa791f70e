//go:build linux

package docs

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
	"github.com/goverbs/verbs/internal/labtest/tool"
)

// markdown is a document: its text without blocks of code, and these.
type markdown struct {
	text   string
	blocks []block
}

type block struct {
	language, text string
	line           int
}

func parseMarkdown(text string) (m markdown) {
	var b *block
	line := 0
	for l := range strings.Lines(text) {
		line++
		fence := strings.HasPrefix(strings.TrimSpace(l), "```")
		switch {
		case fence && b == nil:
			b = &block{language: strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(l), "`")), line: line}
		case fence:
			m.blocks = append(m.blocks, *b)
			b = nil
		case b != nil:
			b.text += l
		default:
			m.text += l
		}
	}
	return m
}

func documents(t *testing.T) map[string]markdown {
	all := map[string]markdown{}
	files(t, ".md", func(name, text string) { all[name] = parseMarkdown(text) })
	return all
}

var (
	link        = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading     = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	inHeading   = regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	punctuation = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)
)

// anchors are those that GitHub makes of the headings.
func (m markdown) anchors() map[string]bool {
	anchors := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(m.text, -1) {
		a := inHeading.ReplaceAllString(h[1], "$1")
		a = strings.ReplaceAll(punctuation.ReplaceAllString(strings.ToLower(strings.TrimSpace(a)), ""), " ", "-")
		unique := a
		for n := 1; anchors[unique]; n++ {
			unique = fmt.Sprintf("%s-%d", a, n)
		}
		anchors[unique] = true
	}
	return anchors
}

// TestLinks: what a document links to in the repository is there.
func TestLinks(t *testing.T) {
	all := documents(t)
	for name, m := range all {
		for _, l := range link.FindAllStringSubmatch(m.text, -1) {
			u, err := url.Parse(l[1])
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if u.Scheme != "" {
				continue
			}
			target := name
			if u.Path != "" {
				target = path.Join(path.Dir(name), u.Path)
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, l[1])
			} else if u.Fragment != "" && path.Ext(target) == ".md" && !all[target].anchors()[u.Fragment] {
				t.Errorf("%s links to %s, which has no such section", name, l[1])
			}
		}
	}
}

// TestBlocks: programs in documents are compiled, excerpts occur in the file that they
// name, systemd accepts its units, and the shell its commands, whose targets and files are there.
func TestBlocks(t *testing.T) {
	makefile := read(t, "Makefile")
	makes := regexp.MustCompile(`\bmake ([a-z][a-z-]*)`)
	programs := map[string]string{} // by their place
	for name, m := range documents(t) {
		for _, b := range m.blocks {
			t.Run(fmt.Sprintf("%s:%d", name, b.line), func(t *testing.T) {
				switch b.language {
				case "go":
					if rest, ok := strings.CutPrefix(b.text, "// from "); ok {
						file, excerpt, _ := strings.Cut(rest, "\n")
						if !strings.Contains(outdent(read(t, file)), outdent(excerpt)) {
							t.Errorf("%s does not have these lines", file)
						}
						return
					}
					programs[fmt.Sprintf("%s:%d", name, b.line)] = b.text
				case "ini":
					if !strings.Contains(b.text, "[Service]") {
						return
					}
					// The unit's programs need not be installed.
					text := regexp.MustCompile(`(?m)^(Exec\w+=)\S+`).ReplaceAllString(b.text, "${1}/bin/true")
					unit := filepath.Join(t.TempDir(), "test.service")
					labtest.Check(t, os.WriteFile(unit, []byte(text), 0o666))
					if out, err := exec.Command(tool.Path(t, "systemd-analyze"), "verify", "--man=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
						t.Errorf("%v\n%s", err, out)
					}
				case "sh":
					bash := exec.Command(tool.Path(t, "bash"), "-n")
					bash.Stdin = strings.NewReader(b.text)
					if out, err := bash.CombinedOutput(); err != nil {
						t.Errorf("%v\n%s", err, out)
					}
					for _, target := range makes.FindAllStringSubmatch(b.text, -1) {
						if !strings.Contains(makefile, "\n"+target[1]+":") {
							t.Errorf("there is no %s", target[0])
						}
					}
				}
			})
		}
	}
	vet(t, programs)
}

// vet runs go vet once for all programs, in folders of the module that patterns such as ./... leave out.
func vet(t *testing.T, programs map[string]string) {
	t.Helper()
	build := filepath.Join(root, "build")
	labtest.Check(t, os.MkdirAll(build, 0o777))
	all := labtest.Must(os.MkdirTemp(build, "_docs"))(t)
	defer os.RemoveAll(all)
	cmd := exec.Command("go", "vet")
	for place, text := range programs {
		dir := labtest.Must(os.MkdirTemp(all, "program"))(t)
		labtest.Check(t, os.WriteFile(filepath.Join(dir, "main.go"), fmt.Appendf(nil, "//line %s\n%s", place, text), 0o666))
		cmd.Args = append(cmd.Args, "./"+filepath.Base(dir))
	}
	cmd.Dir = all
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// outdent returns the text without indentation.
func outdent(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}
