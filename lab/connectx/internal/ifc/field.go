//go:build linux

// Package ifc reads and writes the fields of commands, contexts and registers of mlx5's firmware
// interface. Their layouts are generated from the kernel's mlx5_ifc.h (zifc.go).
package ifc

//go:generate go run ../../../../gen/ifc

// Field is the place of a field in a structure of mlx5_ifc.h: the offset in bits from its start in
// the upper half, and the number of bits. Bit 0 is the highest of the first byte.
type Field uint32

func (f Field) Off() int  { return int(f >> 16) }
func (f Field) Bits() int { return int(f & 0xffff) }

// Get returns a field of at most 64 bits. The structure b must be long enough.
func (f Field) Get(b []byte) (v uint64) {
	last := f.Off() + f.Bits() - 1
	for _, c := range b[f.Off()/8 : last/8+1] {
		v = v<<8 | uint64(c)
	}
	return v >> (7 - last%8) & (1<<f.Bits() - 1)
}

// U32 is Get for a field of at most 32 bits, Int for one of at most 31.
func (f Field) U32(b []byte) uint32 { return uint32(f.Get(b)) }
func (f Field) Int(b []byte) int    { return int(f.Get(b)) }
func (f Field) Is(b []byte) bool    { return f.Get(b) != 0 }

// Set sets a field of at most 64 bits to the low bits of v.
func (f Field) Set(b []byte, v uint64) {
	mask := uint64(1<<f.Bits() - 1)
	last := f.Off() + f.Bits() - 1
	shift := 7 - last%8
	v, mask = v&mask<<shift, mask<<shift
	for i := last / 8; i >= f.Off()/8; i-- {
		b[i] = b[i]&^byte(mask) | byte(v)
		v, mask = v>>8, mask>>8
	}
}

// At returns the memory of a field that begins at a byte: a structure or an array. For an array of
// variable length it returns the rest of b.
func (f Field) At(b []byte) []byte {
	if f.Bits() == 0 {
		return b[f.Off()/8:]
	}
	return b[f.Off()/8 : (f.Off()+f.Bits())/8]
}

// From returns the structure that begins at a field, and all that follows it.
func (f Field) From(b []byte) []byte { return b[f.Off()/8:] }

// In returns the place of f in a larger structure, which has the structure of f as its field outer.
func (f Field) In(outer Field) Field { return outer&^0xffff + f }

// SetAll sets several fields to a value.
func SetAll(b []byte, v uint64, fields ...Field) {
	for _, f := range fields {
		f.Set(b, v)
	}
}

// Zero reports whether all bits of a field of any size are zero. What is beyond b counts as zero.
func (f Field) Zero(b []byte) bool {
	for off, end := f.Off(), min(f.Off()+f.Bits(), len(b)*8); off < end; {
		n := min(8-off%8, end-off)
		if Field(off<<16 | n).Is(b) {
			return false
		}
		off += n
	}
	return true
}

// Clear clears a field of any size.
func (f Field) Clear(b []byte) {
	for off, end := f.Off(), f.Off()+f.Bits(); off < end; {
		n := min(8-off%8, end-off)
		Field(off<<16|n).Set(b, 0)
		off += n
	}
}

// Layout is the layout of a command.
type Layout struct {
	Name     string  // as in MLX5_CMD_OP_*
	In, Out  int     // bytes, without an array of variable length at the end
	Reserved []Field // of the input: must be zero
}

// Status is the status of a command. mlx5_core's cmd_status_to_err turns it into an errno value.
type Status uint8

// Copy copies a field of any size that begins and ends at bytes, or of at most 64 bits.
func (f Field) Copy(to, from []byte) {
	if f.Bits() > 64 {
		copy(f.At(to), f.At(from))
		return
	}
	f.Set(to, f.Get(from))
}
