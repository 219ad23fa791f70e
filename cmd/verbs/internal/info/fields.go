package info

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"github.com/goverbs/verbs/cmd/verbs/internal/cli"
)

// field is one line of ibv_devinfo -v, and one member of the JSON object.
type field struct {
	name  string
	value any    // for JSON: a number, string, bool, fields, []fields or []gid
	text  string // for people; unused for the last three
}

// fields is a section of lines, and a JSON object in the same order.
type fields []field

func (f *fields) add(name string, value any) { f.addf(name, value, "%v", value) }

func (f *fields) addf(name string, value any, format string, args ...any) {
	*f = append(*f, field{name, value, fmt.Sprintf(format, args...)})
}

// flags adds a set of flags, as a number in JSON and by name in the text.
func (f *fields) flags(name string, value uint64, width int, names []string) {
	text := fmt.Sprintf("0x%0*x", width, value)
	for i, name := range names {
		if name != "" && value>>i&1 != 0 {
			text += " " + name
		}
	}
	*f = append(*f, field{name, value, text})
}

// MarshalJSON returns a JSON object with the fields in order.
func (f fields) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range f {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, "%q:%s", m.name, v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// gid is an entry of a port's GID table.
type gid struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"`
}

// print prints the fields in lines of at most width columns, which 0 does not limit.
func (f fields) print(w io.Writer, width int, indent string) {
	for _, m := range f {
		switch v := m.value.(type) {
		case fields:
			fmt.Fprintf(w, "%s%s:\n", indent, m.name)
			v.print(w, width, indent+"\t")
		case []fields:
			for _, section := range v {
				fmt.Fprintln(w)
				section.print(w, width, indent+"\t")
			}
		case []gid:
			for _, g := range v {
				head := fmt.Sprintf("%sGID[%3d]:               \t", indent, g.Index)
				fmt.Fprintln(w, cli.Wrap(head, g.GID+", "+g.Type, width, indent+"\t"))
			}
		default:
			head := fmt.Sprintf("%s%-24s\t", indent, m.name+":")
			fmt.Fprintln(w, cli.Wrap(head, cli.Printable(m.text), width, indent+"\t"))
		}
	}
}
