//go:build linux

package connectx

// field is the place of a field in a structure of mlx5_ifc.h: the offset in bits from its start in
// the upper half, and the number of bits. Bit 0 is the highest of the first byte.
type field uint32

func (f field) off() int  { return int(f >> 16) }
func (f field) bits() int { return int(f & 0xffff) }

// get returns a field of at most 64 bits. The structure b must be long enough.
func (f field) get(b []byte) (v uint64) {
	last := f.off() + f.bits() - 1
	for _, c := range b[f.off()/8 : last/8+1] {
		v = v<<8 | uint64(c)
	}
	return v >> (7 - last%8) & (1<<f.bits() - 1)
}

// u32 is get of a field of at most 32 bits, int that of one of at most 31.
func (f field) u32(b []byte) uint32 { return uint32(f.get(b)) }
func (f field) int(b []byte) int    { return int(f.get(b)) }
func (f field) is(b []byte) bool    { return f.get(b) != 0 }

// set sets a field of at most 64 bits to v, of which it takes the low bits.
func (f field) set(b []byte, v uint64) {
	mask := uint64(1<<f.bits() - 1)
	last := f.off() + f.bits() - 1
	shift := 7 - last%8
	v, mask = v&mask<<shift, mask<<shift
	for i := last / 8; i >= f.off()/8; i-- {
		b[i] = b[i]&^byte(mask) | byte(v)
		v, mask = v>>8, mask>>8
	}
}

// at returns the memory of a field that begins at a byte: a structure or an array. Of an array of
// any length it returns the rest of b.
func (f field) at(b []byte) []byte {
	if f.bits() == 0 {
		return b[f.off()/8:]
	}
	return b[f.off()/8 : (f.off()+f.bits())/8]
}

// from returns the structure that begins at a field, with what follows it.
func (f field) from(b []byte) []byte { return b[f.off()/8:] }

// zero reports whether all bits of a field of any size are zero. What is beyond b counts as zero.
func (f field) zero(b []byte) bool {
	for off, end := f.off(), min(f.off()+f.bits(), len(b)*8); off < end; {
		n := min(8-off%8, end-off)
		if field(off<<16 | n).is(b) {
			return false
		}
		off += n
	}
	return true
}

// clear clears a field of any size.
func (f field) clear(b []byte) {
	for off, end := f.off(), f.off()+f.bits(); off < end; {
		n := min(8-off%8, end-off)
		field(off<<16|n).set(b, 0)
		off += n
	}
}

// layout is that of a command.
type layout struct {
	name     string  // as in MLX5_CMD_OP_*
	in, out  int     // bytes, without what follows as an array
	reserved []field // of the input, which must be zero
}

// status is that of a command, as the driver gets it. The kernel makes errno values of them in
// mlx5_cmd.c, cmd_status_to_err.
type status uint8

// copy copies a field of any size that begins and ends at bytes, or of at most 64 bits.
func (f field) copy(to, from []byte) {
	if f.bits() > 64 {
		copy(f.at(to), f.at(from))
		return
	}
	f.set(to, f.get(from))
}
