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

// header is what the text of the headers defines.
type header struct {
	structs map[string]*ifcStruct
	enums   []enumerator
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
	reStruct  = regexp.MustCompile(`(?s)\b(struct|union) mlx5_ifc_(\w+?)(?:_bits)? \{(.*?)\n\};`)
	reField   = regexp.MustCompile(`(?:u8|(?:struct|union) mlx5_ifc_(\w+?)(?:_bits)?)\s+(\w+)((?:\[\w*\])*);`)
	reDim     = regexp.MustCompile(`\[(\w*)\]`)
	reEnum    = regexp.MustCompile(`(?s)\benum\s*\w*\s*\{(.*?)\}`)
	reSuffix  = regexp.MustCompile(`(\d)[uUlL]+\b`)
	reCast    = regexp.MustCompile(`\(u64\)`)
)

func newHeader(text string) *header {
	text = reComment.ReplaceAllString(text, "")
	h := &header{structs: map[string]*ifcStruct{}}
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
	if s == nil || s.bits > 0 {
		if s == nil {
			return 0
		}
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
	// mlx5_ifc.h has the events a second time, as TYPE_CODING.
	re := regexp.MustCompile(`^(?:` + prefix.match + `)(\w+)$`)
	before := b.Len()
	fmt.Fprintf(b, "// %s\nconst (\n", prefix.comment)
	found := false
	for _, e := range h.enums {
		if m := re.FindStringSubmatch(e.name); m != nil && !strings.HasPrefix(m[1], "CODING_") {
			fmt.Fprintf(b, "%s%s %s = %#x\n", prefix.name, camel(m[1]), prefix.typ, e.value)
			found = true
		}
	}
	b.WriteString(")\n\n")
	if !found {
		b.Truncate(before)
		return fmt.Errorf("no enumerator %s", prefix.match)
	}
	return nil
}

const opPrefix = "MLX5_CMD_OP_"

// writeOps writes the names of all commands, and constants for those of commands.
func (h *header) writeOps(b *bytes.Buffer) {
	b.WriteString("// Commands, MLX5_CMD_OP_*.\nconst (\n")
	for _, e := range h.enums {
		if op, ok := strings.CutPrefix(e.name, opPrefix); ok && slices.Contains(commands, op) {
			fmt.Fprintf(b, "op%s = %#x\n", camel(op), e.value)
		}
	}
	b.WriteString(")\n\nvar opNames = map[uint16]string{\n")
	seen := map[int64]bool{}
	for _, e := range h.enums {
		if op, ok := strings.CutPrefix(e.name, opPrefix); ok && e.value <= 0xffff && op != "MAX" && !seen[e.value] {
			fmt.Fprintf(b, "%#x: %q,\n", e.value, op)
			seen[e.value] = true
		}
	}
	b.WriteString("}\n\n")
}

// writeStruct writes the places of a structure's fields.
func (h *header) writeStruct(b *bytes.Buffer, name string, command bool) error {
	s := h.structs[name]
	if s == nil {
		return fmt.Errorf("no structure %s", name)
	}
	if s.missing != "" {
		return fmt.Errorf("structure %s holds %s, which the headers do not define", name, s.missing)
	}
	prefix := lower(camel(name))
	var fields strings.Builder
	for _, f := range s.fields {
		if !f.reserved() && !(command && slices.Contains(ofAll, f.name)) {
			fmt.Fprintf(&fields, "%s%s field = %s\n", prefix, camel(f.name), place(f.off, f.bits()))
		}
	}
	if !command {
		fmt.Fprintf(&fields, "%sSize = %#x\n", prefix, s.bits/8)
	}
	if fields.Len() > 0 {
		fmt.Fprintf(b, "// struct mlx5_ifc_%s_bits\nconst (\n%s)\n\n", name, &fields)
	}
	if slices.Contains(withReserved, name) {
		fmt.Fprintf(b, "var %sReserved = %s\n\n", prefix, runs(h.reserved(name, 0)))
	}
	return nil
}

// ofAll are fields that are in all commands' inputs or outputs.
var ofAll = []string{"opcode", "op_mod", "uid", "status", "syndrome"}

// writeCommands writes the commands' inputs and outputs, their sizes, and what is reserved there.
func (h *header) writeCommands(b *bytes.Buffer) error {
	for _, op := range commands {
		for _, suffix := range []string{"_in", "_out"} {
			if err := h.writeStruct(b, structOf(op)+suffix, true); err != nil {
				return err
			}
		}
	}
	b.WriteString("// layouts are those of the commands' input and output.\nvar layouts = map[uint16]layout{\n")
	for _, op := range commands {
		in, out := h.structs[structOf(op)+"_in"], h.structs[structOf(op)+"_out"]
		fmt.Fprintf(b, "op%s: {%#x, %#x, %s},\n", camel(op), in.bits/8, out.bits/8, runs(h.reserved(structOf(op)+"_in", 0)))
	}
	b.WriteString("}\n")
	return nil
}

// structOf returns the name of a command in those of its structures.
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
	var b strings.Builder
	b.WriteString("[]field{")
	for i, r := range list {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(place(r[0], r[1]))
	}
	return b.String() + "}"
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

func lower(s string) string { return strings.ToLower(s[:1]) + s[1:] }
