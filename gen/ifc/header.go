package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// header holds the definitions of the headers.
type header struct {
	structs map[string]*ifcStruct
	names   []string // of structs, in their order in the headers
	enums   []enumerator
	used    map[string]bool // identifiers of the adapter: only these are written
}

type enumerator struct {
	name  string
	value int64
}

// ifcStruct is struct or union mlx5_ifc_NAME_bits, or without _bits.
type ifcStruct struct {
	union   bool
	fields  []ifcField
	bits    int
	missing string // a structure in it that the headers do not define
}

type ifcField struct {
	name  string
	of    string // the structure that the field holds, or ""
	off   int    // bits from the start of the structure
	elem  int    // bits of an element
	count int    // elements, 0 for a flexible array
}

func (f ifcField) bits() int { return f.elem * f.count }

func (f ifcField) reserved() bool { return strings.HasPrefix(f.name, "reserved_") }

var (
	reComment = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*`)
	reNotice  = regexp.MustCompile(`(?s)/\*\n \* Copyright .*?\*/`)
	reStruct  = regexp.MustCompile(`(?s)\b(struct|union) mlx5_ifc_(\w+?)(?:_bits)? \{(.*?)\n\};`)
	reField   = regexp.MustCompile(`(?:u8|(?:struct|union) mlx5_ifc_(\w+?)(?:_bits)?)\s+(\w+)((?:\[\w*\])*);`)
	reDim     = regexp.MustCompile(`\[(\w*)\]`)
	reEnum    = regexp.MustCompile(`(?s)\benum\s*\w*\s*\{(.*?)\}`)
	reSuffix  = regexp.MustCompile(`(\d)[uUlL]+\b`)
	reCast    = regexp.MustCompile(`\(u64\)`)
)

// notices returns the copyright notices of the headers, which the licence wants kept, each once.
func notices(text string) []string {
	var all []string
	for _, n := range reNotice.FindAllString(text, -1) {
		if !slices.Contains(all, n) {
			all = append(all, n)
		}
	}
	return all
}

func newHeader(text string, used map[string]bool) *header {
	text = reComment.ReplaceAllString(text, "")
	h := &header{structs: map[string]*ifcStruct{}, used: used}
	for _, m := range reEnum.FindAllStringSubmatch(text, -1) {
		h.addEnum(m[1])
	}
	for _, m := range reStruct.FindAllStringSubmatch(text, -1) {
		s := &ifcStruct{union: m[1] == "union"}
		for _, f := range reField.FindAllStringSubmatch(m[3], -1) {
			field := ifcField{name: f[2], of: f[1], elem: 1, count: 1}
			for _, d := range reDim.FindAllStringSubmatch(f[3], -1) {
				n, _ := strconv.ParseInt(d[1], 0, 32) // [] is 0
				field.count *= int(n)
			}
			s.fields = append(s.fields, field)
		}
		h.structs[m[2]] = s
		h.names = append(h.names, m[2])
	}
	for name := range h.structs {
		h.size(name)
	}
	return h
}

// addEnum evaluates the enumerators of one enumeration. Those whose values depend on more than
// integers and each other are left out.
func (h *header) addEnum(body string) {
	next := int64(0)
	for e := range strings.SplitSeq(body, ",") {
		name, expr, given := strings.Cut(strings.TrimSpace(e), "=")
		if name = strings.TrimSpace(name); name == "" {
			continue
		}
		if given {
			expr = reCast.ReplaceAllString(reSuffix.ReplaceAllString(expr, "$1"), "")
			tv, err := types.Eval(token.NewFileSet(), nil, token.NoPos, strings.TrimSpace(expr))
			if err != nil {
				next = -1 << 62 // what follows without a value is unknown, too
				continue
			}
			next, _ = constant.Int64Val(constant.ToInt(tv.Value))
		}
		if next >= 0 && !slices.ContainsFunc(h.enums, func(e enumerator) bool { return e.name == name }) {
			h.enums = append(h.enums, enumerator{name, next})
		}
		next++
	}
}

// size computes the places of a structure's fields, and returns its size in bits.
func (h *header) size(name string) int {
	s := h.structs[name]
	if s == nil {
		return 0
	}
	if s.bits > 0 {
		return s.bits
	}
	for i := range s.fields {
		f := &s.fields[i]
		if f.of != "" {
			f.elem = h.size(f.of)
			if in := h.structs[f.of]; in == nil {
				s.missing = f.of
			} else if !in.union { // of which the others tell the size
				s.missing = cmp.Or(s.missing, in.missing)
			}
		}
		if !s.union {
			f.off = s.bits
			s.bits += f.bits()
		} else {
			s.bits = max(s.bits, f.bits())
		}
	}
	return s.bits
}

// reserved returns the runs of reserved bits of a structure that begins at off. What the variants
// of a union reserve depends on the variant, so that they count as used.
func (h *header) reserved(name string, off int) (runs [][2]int) {
	s := h.structs[name]
	if s.union {
		return nil
	}
	for _, f := range s.fields {
		switch {
		case f.reserved():
			runs = append(runs, [2]int{off + f.off, f.bits()})
		case f.of != "":
			for i := range f.count {
				runs = append(runs, h.reserved(f.of, off+f.off+i*f.elem)...)
			}
		}
	}
	return slices.DeleteFunc(runs, func(r [2]int) bool { return r[1] == 0 })
}

// writeEnum writes the enumerators that begin with a prefix of enums.
func (h *header) writeEnum(b *bytes.Buffer, prefix enum) error {
	re := regexp.MustCompile(`^(?:` + prefix.match + `)(\w+)$`)
	found := false
	for _, e := range h.enums {
		m := re.FindStringSubmatch(e.name)
		if m == nil || !h.used[prefix.name+camel(m[1])] {
			continue
		}
		if !found {
			fmt.Fprintf(b, "\n// %s\n", prefix.comment)
			found = true
		}
		fmt.Fprintf(b, "%s%s %s = %#x\n", prefix.name, camel(m[1]), prefix.typ, e.value)
	}
	if !found {
		return fmt.Errorf("no enumerator %s is used", prefix.match)
	}
	return nil
}

// writeStruct writes the places of a structure's fields, and its size in bytes.
func (h *header) writeStruct(b *bytes.Buffer, name string) error {
	s := h.structs[name]
	prefix := camel(name)
	var fields strings.Builder
	for _, f := range s.fields {
		if c := prefix + camel(f.name); h.used[c] {
			fmt.Fprintf(&fields, "%s Field = %s\n", c, place(f.off, f.bits()))
		}
	}
	if c := prefix + "Size"; h.used[c] {
		fmt.Fprintf(&fields, "%s = %#x\n", c, s.bits/8)
	}
	if fields.Len() == 0 {
		return nil
	}
	if s.missing != "" {
		return fmt.Errorf("structure %s holds %s, which the headers do not define", name, s.missing)
	}
	fmt.Fprintf(b, "\n// struct mlx5_ifc_%s_bits\n%s", name, &fields)
	return nil
}

const opPrefix = "MLX5_CMD_OP_"

// writeCommands writes, of the commands in use, the name, the sizes of input and output, and what
// is reserved in the input.
func (h *header) writeCommands(b *bytes.Buffer) error {
	b.WriteString("// Layouts are those of the commands' input and output.\nvar Layouts = map[uint16]Layout{\n")
	for _, e := range h.enums {
		op, ok := strings.CutPrefix(e.name, opPrefix)
		if !ok || !h.used["Op"+camel(op)] {
			continue
		}
		in, out := h.structs[structOf(op)+"_in"], h.structs[structOf(op)+"_out"]
		if in == nil || out == nil {
			return fmt.Errorf("command %s has no structures %s_in and _out", op, structOf(op))
		}
		fmt.Fprintf(b, "Op%s: {%q, %#x, %#x, %s},\n", camel(op), op, in.bits/8, out.bits/8, runs(h.reserved(structOf(op)+"_in", 0)))
	}
	b.WriteString("}\n")
	return nil
}

// structOf returns the part of the names of a command's structures that names the command.
func structOf(op string) string {
	switch op {
	case "2ERR_QP", "2RST_QP":
		return "qp_" + strings.ToLower(strings.TrimSuffix(op, "_QP"))
	case "ACCESS_REG":
		return "access_register"
	}
	return strings.ToLower(strings.Replace(op, "FLOW_TABLE_ENTRY", "FTE", 1))
}

func runs(list [][2]int) string {
	var places []string
	for _, r := range list {
		places = append(places, place(r[0], r[1]))
	}
	return "[]Field{" + strings.Join(places, ", ") + "}"
}

// place writes a field: the offset in bits in the upper half, and the number of bits.
func place(off, bits int) string {
	if off > 0xffff || bits > 0xffff {
		panic(fmt.Sprintf("a field of %d bits at %d", bits, off))
	}
	if bits == 0 { // an array of any length
		return fmt.Sprintf("%#x<<16", off)
	}
	return fmt.Sprintf("%#x<<16 | %#x", off, bits)
}

// camel turns create_qp_in and CREATE_QP into CreateQpIn and CreateQp.
func camel(c string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(c, "_") {
		if part != "" {
			b.WriteString(strings.ToUpper(part[:1]) + strings.ToLower(part[1:]))
		}
	}
	return b.String()
}
