package roce

import (
	"encoding/binary"
	"hash/crc32"
	"sync"
)

// The CRC is the usual CRC-32. Its register is a polynomial over GF(2) modulo the generator,
// with the coefficient of x^0 in bit 31. A zero byte multiplies it by x^8. The CRC is linear:
// a difference in the message makes a difference in the CRC that does not depend on the rest
// of the message, only on how many bytes follow.

// maxShift is the number of powers in shift and unshift: enough for packets of 8 KiB.
const maxShift = 2048

// field has the difference that each byte of a 16 bit field makes, at a fixed distance from
// the end of the IP and UDP headers.
type field [2][256]uint32

func (f *field) crc(v uint16) uint32 { return f[0][v>>8] ^ f[1][v&0xff] }

var (
	tablesOnce sync.Once

	// byteCRC[n][b] is the CRC of the byte b and n zero bytes.
	byteCRC [8][256]uint32

	// shift[n] is x^(32 n), unshift[n] is x^(-32 n).
	shift, unshift [maxShift + 1]uint32

	ipv4Length, ipv4ID, ipv6Length, udpLength field
)

func makeTables() {
	byteCRC[0] = *crc32.IEEETable
	for n := 1; n < len(byteCRC); n++ {
		for b, c := range byteCRC[n-1] {
			byteCRC[n][b] = c>>8 ^ byteCRC[0][c&0xff]
		}
	}
	// The entries differ in their upper byte, so that it shows which byte was the last one.
	var inverse [256]uint8
	for b, c := range byteCRC[0] {
		inverse[c>>24] = uint8(b)
	}
	shift[0], unshift[0] = 1<<31, 1<<31
	for n := 1; n <= maxShift; n++ {
		shift[n] = times32(shift[n-1])
		c := unshift[n-1]
		for range 4 {
			b := inverse[c>>24]
			c = (c^byteCRC[0][b])<<8 | uint32(b)
		}
		unshift[n] = c
	}
	ipv4Length.fill(26)
	ipv4ID.fill(24)
	ipv6Length.fill(44)
	udpLength.fill(4)
}

// fill fills f for a field whose first byte is n bytes before the end.
func (f *field) fill(n int) {
	for i := range f {
		for b := range f[i] {
			c := byteCRC[0][b]
			for range n - 1 - i {
				c = c>>8 ^ byteCRC[0][c&0xff]
			}
			f[i][b] = c
		}
	}
}

// times32 multiplies by x^32.
func times32(c uint32) uint32 {
	return byteCRC[3][c&0xff] ^ byteCRC[2][c>>8&0xff] ^ byteCRC[1][c>>16&0xff] ^ byteCRC[0][c>>24]
}

// update4 and update8 return the register c after the bytes of words in little endian order.
func update4(c, w uint32) uint32 { return times32(c ^ w) }

func update8(c, w0, w1 uint32) uint32 {
	c ^= w0
	return byteCRC[7][c&0xff] ^ byteCRC[6][c>>8&0xff] ^ byteCRC[5][c>>16&0xff] ^ byteCRC[4][c>>24] ^ times32(w1)
}

// multiply multiplies two polynomials. The factors of the integer multiplications have every
// fourth bit, at most 8: their carries do not reach the next bit that counts.
func multiply(a, b uint32) uint32 {
	const m = 0x11111111
	a0, a1, a2, a3 := uint64(a&m), uint64(a&(m<<1)), uint64(a&(m<<2)), uint64(a&(m<<3))
	b0, b1, b2, b3 := uint64(b&m), uint64(b&(m<<1)), uint64(b&(m<<2)), uint64(b&(m<<3))
	const mm = m<<32 | m
	p := (a0*b0^a1*b3^a2*b2^a3*b1)&mm |
		(a0*b1^a1*b0^a2*b3^a3*b2)&(mm<<1) |
		(a0*b2^a1*b1^a2*b0^a3*b3)&(mm<<2) |
		(a0*b3^a1*b2^a2*b1^a3*b0)&(mm<<3)
	return uint32(p>>31) ^ times32(uint32(p<<1))
}

// shifted multiplies c by the nth power in table, which is shift or unshift.
func shifted(c uint32, table *[maxShift + 1]uint32, n int) uint32 {
	for ; n > maxShift; n -= maxShift {
		c = multiply(c, table[maxShift])
	}
	return multiply(c, table[n])
}

// body returns the register c after the bytes of b.
func body(c uint32, b []byte) uint32 { return ^crc32.Update(^c, crc32.IEEETable, b) }

func le32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
