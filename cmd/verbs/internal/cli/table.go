package cli

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width returns how many columns a line on w may have: the width of a terminal, which COLUMNS
// overrides, or 0 (no limit) elsewhere.
func Width(w io.Writer) int {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0
	}
	if n, err := strconv.Atoi(os.Getenv("COLUMNS")); err == nil && n > 0 {
		return n
	}
	n, _, err := term.GetSize(int(f.Fd()))
	if err != nil || n <= 0 { // as of a serial line
		return 80
	}
	return n
}

// Output is a writer that keeps its first error, for text that is printed line by line.
type Output struct {
	W   io.Writer
	Err error
}

func (o *Output) Write(b []byte) (int, error) {
	n, err := o.W.Write(b)
	if o.Err == nil {
		o.Err = err
	}
	return n, err
}

// Wrap returns head and text in lines of at most width columns; all but the first begin with
// indent. It breaks text only, at spaces and after commas, and not at all if width is 0.
func Wrap(head, text string, width int, indent string) string {
	if width == 0 || columns(head+text) <= width {
		return head + text
	}
	first := fill(text, width-columns(head))[0]
	if columns(head+first) > width { // which may fit below head
		head, first = strings.TrimRight(head, " \t"), ""
	}
	rest := fill(strings.TrimLeft(text[len(first):], " "), width-columns(indent))
	return head + strings.Join(append([]string{first}, rest...), "\n"+indent)
}

// Fits reports whether the lines of text have at most width columns, which 0 does not limit.
func Fits(text string, width int) bool {
	for line := range strings.Lines(text) {
		if width > 0 && columns(strings.TrimSuffix(line, "\n")) > width {
			return false
		}
	}
	return true
}

// fill breaks text at spaces and after commas into lines of at most width columns, or of one word.
func fill(text string, width int) (lines []string) {
	for _, p := range part.FindAllString(text, -1) {
		n := len(lines) - 1
		if n >= 0 && columns(strings.TrimRight(lines[n]+p, " ")) <= width {
			lines[n] += p
		} else {
			lines = append(lines, p)
		}
	}
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return lines
}

// part is a piece of text that may be broken after it.
var part = regexp.MustCompile(`[^ ,]*[ ,]|[^ ,]+`)

func columns(s string) int { return utf8.RuneCountInString(s) + 7*strings.Count(s, "\t") }

// Table prints rows in columns, or each row as a list of its fields if columns are wider than the
// terminal.
type Table struct {
	w     io.Writer
	width int
	rows  [][]string // the first is the header
}

// NewTable returns a table with the names of its columns.
func NewTable(w io.Writer, header ...string) *Table {
	return &Table{w: w, width: Width(w), rows: [][]string{header}}
}

// Row adds a row. Empty fields are printed as "-".
func (t *Table) Row(fields ...any) {
	row := make([]string, len(fields))
	for i, f := range fields {
		row[i] = cmp.Or(strings.TrimSpace(Printable(fmt.Sprint(f))), "-")
	}
	t.rows = append(t.rows, row)
}

const gap = 2 // columns between fields

// Flush prints the table.
func (t *Table) Flush() error {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, gap, ' ', 0)
	for _, row := range t.rows {
		fmt.Fprintln(table, strings.Join(row, "\t"))
	}
	table.Flush()
	if !Fits(b.String(), t.width) {
		b.Reset()
		for _, row := range t.rows[1:] {
			t.writeList(&b, row)
		}
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// List prints rows as JSON, or as a table with the cells of each.
func List[T any](w io.Writer, asJSON bool, rows []T, header []string, cells func(T) []any) error {
	if asJSON {
		return WriteJSON(w, append([]T{}, rows...)) // an empty list is []
	}
	t := NewTable(w, header...)
	for _, r := range rows {
		t.Row(cells(r)...)
	}
	return t.Flush()
}

// writeList writes a row as lines of a name and a value, after an empty line.
func (t *Table) writeList(b *strings.Builder, row []string) {
	header := t.rows[0]
	longest := 0
	for _, name := range header {
		longest = max(longest, columns(name))
	}
	b.WriteByte('\n')
	for i, field := range row {
		head := fmt.Sprintf("%-*s", longest+gap, header[i])
		b.WriteString(Wrap(head, field, t.width, strings.Repeat(" ", len(head))) + "\n")
	}
}
