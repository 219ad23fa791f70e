package nldev

import (
	"encoding/binary"
	"iter"
	"strings"
)

// Attrs is a sequence of attributes, as a request or an answer holds them.
type Attrs []byte

const attrHeader = 4 // length and type, 16 bits each

// nested and byteOrder are flags of an attribute's type (linux/netlink.h).
const nested, byteOrder = 1 << 15, 1 << 14

// All yields the types and the values of the attributes, in order, up to one that is cut off.
func (a Attrs) All() iter.Seq2[int, Value] {
	return func(yield func(int, Value) bool) {
		for len(a) >= attrHeader {
			size, typ := int(binary.NativeEndian.Uint16(a)), binary.NativeEndian.Uint16(a[2:])
			if size < attrHeader || size > len(a) {
				return
			}
			if !yield(int(typ&^(nested|byteOrder)), Value(a[attrHeader:size])) {
				return
			}
			a = a[min(align(size), len(a)):]
		}
	}
}

// Map returns the attributes by type. If a type occurs more than once, its last value is returned.
func (a Attrs) Map() map[int]Value {
	m := map[int]Value{}
	for typ, v := range a.All() {
		m[typ] = v
	}
	return m
}

// align rounds up to the multiple of 4 at which the next attribute starts.
func align(n int) int { return (n + 3) &^ 3 }

// Value is the value of an attribute.
type Value []byte

// Uint returns a value of 1, 2, 4 or 8 bytes as a number, and 0 for any other.
func (v Value) Uint() uint64 {
	switch len(v) {
	case 1:
		return uint64(v[0])
	case 2:
		return uint64(binary.NativeEndian.Uint16(v))
	case 4:
		return uint64(binary.NativeEndian.Uint32(v))
	case 8:
		return binary.NativeEndian.Uint64(v)
	}
	return 0
}

// String returns a string value, which ends at its first zero.
func (v Value) String() string {
	s, _, _ := strings.Cut(string(v), "\x00")
	return s
}

// Attrs returns the attributes that are nested in the value.
func (v Value) Attrs() Attrs { return Attrs(v) }

// add appends an attribute.
func (a Attrs) add(typ int, value []byte) Attrs {
	a = binary.NativeEndian.AppendUint16(a, uint16(attrHeader+len(value)))
	a = binary.NativeEndian.AppendUint16(a, uint16(typ))
	a = append(a, value...)
	return append(a, make([]byte, align(len(value))-len(value))...)
}

// Uint8 appends a number of one byte.
func (a Attrs) Uint8(typ int, v uint8) Attrs { return a.add(typ, []byte{v}) }

// Uint32 appends a number of four bytes.
func (a Attrs) Uint32(typ int, v uint32) Attrs {
	return a.add(typ, binary.NativeEndian.AppendUint32(nil, v))
}

// Uint64 appends a number of eight bytes.
func (a Attrs) Uint64(typ int, v uint64) Attrs {
	return a.add(typ, binary.NativeEndian.AppendUint64(nil, v))
}

// Bytes appends a value.
func (a Attrs) Bytes(typ int, v []byte) Attrs { return a.add(typ, v) }

// String appends a string.
func (a Attrs) String(typ int, v string) Attrs { return a.add(typ, append([]byte(v), 0)) }

// Nested appends attributes as the value of another.
func (a Attrs) Nested(typ int, v Attrs) Attrs { return a.add(typ|nested, v) }
