package main

import (
	"fmt"
	"slices"

	"github.com/cilium/ebpf/btf"
)

// goType is a generated type: a C struct or union, or an unnamed one inside another.
type goType struct {
	name      string
	c         string // the named C type it is, or is in: "struct rxe_send_wr"
	path      string // where inside c: "wr.rdma", or ""
	base      uint32 // and at which offset
	size      uint32
	align     uint32
	union     bool
	fields    []goField
	accessors []goField // members read through a method: of unions, flexible arrays
}

type goField struct {
	name  string // "" for padding
	typ   string
	off   uint32
	size  uint32
	align uint32
	c     string // C path inside the goType
	note  string
}

// builder turns BTF into goTypes.
type builder struct {
	types map[string]*goType
	order []*goType
	byC   map[string]string // C type -> Go name
	used  func(name string) bool
}

// called reports whether the code calls the method that reads a member.
func (b *builder) called(m btf.Member) bool { return b.used("." + camel(m.Name)) }

// namedType builds the type of a named struct or union and returns its Go name.
func (b *builder) namedType(t btf.Type) (string, error) {
	kind, tag, size, members := composite(t)
	c := kind + " " + tag
	if name, ok := b.byC[c]; ok {
		return name, nil
	}
	name := camel(tag)
	b.byC[c] = name
	return name, b.build(&goType{name: name, c: c, size: size, union: kind == "union"}, members)
}

func (b *builder) build(g *goType, members []btf.Member) error {
	if _, dup := b.types[g.name]; dup {
		return fmt.Errorf("two types want the name %s", g.name)
	}
	b.types[g.name] = g
	b.order = append(b.order, g)
	g.align = 1
	for _, m := range members {
		g.align = max(g.align, alignOf(m.Type))
	}
	if g.union {
		g.fields = []goField{unionField("raw", 0, g.size, g.align)}
		return b.accessors(g, members, 0)
	}
	if err := b.members(g, members, 0); err != nil {
		return err
	}
	var align uint32
	for _, f := range g.fields {
		align = max(align, f.align)
	}
	if align < g.align { // of a flexible array in C, which is no field in Go
		g.fields = slices.Insert(g.fields, 0, goField{typ: fmt.Sprintf("[0]uint%d", g.align*8), align: g.align})
	}
	return g.pad(g.size)
}

// members adds the fields of a struct. Those of unnamed structs in it become
// its own, as in C.
func (b *builder) members(g *goType, members []btf.Member, base uint32) error {
	for _, m := range members {
		off := base + m.Offset.Bytes()
		if m.BitfieldSize != 0 {
			return fmt.Errorf("%s.%s is a bitfield, which is not supported", g.c, m.Name)
		}
		if m.Name == "" {
			kind, _, size, inner := composite(m.Type)
			if kind == "struct" {
				if err := b.members(g, inner, off); err != nil {
					return err
				}
				continue
			}
			if size > 0 {
				if err := g.pad(off); err != nil {
					return err
				}
				g.fields = append(g.fields, unionField(fmt.Sprintf("union%d", off), off, size, alignOf(m.Type)))
			}
			if err := b.accessors(g, inner, off); err != nil {
				return err
			}
			continue
		}
		if isFlexible(m.Type) && !b.called(m) {
			continue
		}
		f, flexible, err := b.field(g, m, off)
		if err != nil {
			return err
		}
		switch {
		case flexible:
			g.accessors = append(g.accessors, f)
		case f.size > 0:
			if err := g.pad(off); err != nil {
				return err
			}
			g.fields = append(g.fields, f)
		}
	}
	return nil
}

// accessors adds a method for each member of a union whose method is called.
func (b *builder) accessors(g *goType, members []btf.Member, base uint32) error {
	for _, m := range members {
		off := base + m.Offset.Bytes()
		if m.Name == "" {
			_, _, _, inner := composite(m.Type)
			if err := b.accessors(g, inner, off); err != nil {
				return err
			}
			continue
		}
		if !b.called(m) {
			continue
		}
		f, flexible, err := b.field(g, m, off)
		if err != nil {
			return err
		}
		if f.size > 0 || flexible {
			g.accessors = append(g.accessors, f)
		}
	}
	return nil
}

// field describes one named member. For a flexible array it describes the
// first element.
func (b *builder) field(g *goType, m btf.Member, off uint32) (f goField, flexible bool, err error) {
	f = goField{name: camel(m.Name), off: off, align: alignOf(m.Type), c: m.Name}
	t := m.Type
	if flexible = isFlexible(t); flexible {
		t = btf.UnderlyingType(t).(*btf.Array).Type
		f.c += "[0]"
		f.note = "flexible array: its first element"
	}
	n, err := btf.Sizeof(t)
	if err != nil || n == 0 { // empty structs are left out
		return f, flexible, err
	}
	f.size = uint32(n)
	if bigEndian(t) {
		f.note = "big endian"
	}
	f.typ, err = b.typeName(g, &f, f.c, t)
	return f, flexible, err
}

func isFlexible(t btf.Type) bool {
	a, ok := btf.UnderlyingType(t).(*btf.Array)
	return ok && a.Nelems == 0
}

func (b *builder) typeName(g *goType, f *goField, cpath string, t btf.Type) (string, error) {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		if t.Encoding == btf.Signed {
			return fmt.Sprintf("int%d", t.Size*8), nil
		}
		return fmt.Sprintf("uint%d", t.Size*8), nil
	case *btf.Enum:
		return fmt.Sprintf("uint%d", t.Size*8), nil
	case *btf.Pointer:
		return "uint64", nil
	case *btf.Array:
		elem, err := b.typeName(g, f, cpath+"[0]", t.Type)
		return fmt.Sprintf("[%d]%s", t.Nelems, elem), err
	case *btf.Struct, *btf.Union:
		kind, tag, size, members := composite(t)
		if tag != "" {
			return b.namedType(t)
		}
		if g.path != "" {
			cpath = g.path + "." + cpath
		}
		inner := &goType{name: g.name + f.name, c: g.c, path: cpath, base: g.base + f.off, size: size, union: kind == "union"}
		return inner.name, b.build(inner, members)
	default:
		return "", fmt.Errorf("%s.%s: no Go type for %v", g.c, cpath, t)
	}
}

// pad adds explicit padding up to off, so that nothing depends on how Go aligns fields.
func (g *goType) pad(off uint32) error {
	var end uint32
	if n := len(g.fields); n > 0 {
		end = g.fields[n-1].off + g.fields[n-1].size
	}
	if end > off {
		return fmt.Errorf("%s: fields overlap at offset %d", g.c, off)
	}
	if end < off {
		g.fields = append(g.fields, goField{typ: fmt.Sprintf("[%d]byte", off-end), off: end, size: off - end})
	}
	return nil
}

// unionField returns the field of a union: bytes, aligned as its members are.
func unionField(name string, off, size, align uint32) goField {
	if align > 1 {
		return goField{name: name, off: off, size: size, align: align, typ: fmt.Sprintf("struct { _ [0]uint%d; mem [%d]byte }", align*8, size)}
	}
	return goField{name: name, off: off, size: size, align: 1, typ: fmt.Sprintf("[%d]byte", size)}
}

func bigEndian(t btf.Type) bool {
	for {
		switch v := t.(type) {
		case *btf.Typedef:
			if v.Name == "__be16" || v.Name == "__be32" || v.Name == "__be64" {
				return true
			}
			t = v.Type
		case *btf.Array:
			t = v.Type
		default:
			return false
		}
	}
}

func composite(t btf.Type) (kind, tag string, size uint32, members []btf.Member) {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		return "struct", t.Name, t.Size, t.Members
	case *btf.Union:
		return "union", t.Name, t.Size, t.Members
	}
	return "", "", 0, nil
}

func alignOf(t btf.Type) uint32 {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return t.Size
	case *btf.Enum:
		return t.Size
	case *btf.Pointer:
		return 8
	case *btf.Array:
		return alignOf(t.Type)
	}
	_, _, _, members := composite(t)
	align := uint32(1)
	for _, m := range members {
		align = max(align, alignOf(m.Type))
	}
	return align
}
