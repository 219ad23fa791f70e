package roce

import (
	"crypto/rand"
	"encoding/binary"
)

// PSN is a packet sequence number: 24 bits, which wrap. It counts packets, and the packets of a
// READ's answer, not bytes as TCP's sequence numbers do. Of two PSNs one is before the other if it
// is in the half of the circle behind it (psn_compare of rxe), so at most 2^23 packets may be under
// way.
type PSN uint32

// PSNMask has the bits of a PSN.
const PSNMask PSN = 1<<24 - 1

// Add returns the PSN n packets after p, or before it if n is negative.
func (p PSN) Add(n int) PSN { return (p + PSN(n)) & PSNMask }

// Sub returns how many packets p is after q, from -1<<23 to 1<<23-1: negative if it is before.
func (p PSN) Sub(q PSN) int { return int(int32((p-q)<<8) >> 8) }

// Before reports whether p is before q.
func (p PSN) Before(q PSN) bool { return int32((p-q)<<8) < 0 }

// After reports whether p is after q.
func (p PSN) After(q PSN) bool { return int32((p-q)<<8) > 0 }

// Random returns a number that peers cannot guess, for keys, PSNs and communication IDs.
func Random() uint32 {
	var b [4]byte
	rand.Read(b[:]) // never fails
	return binary.NativeEndian.Uint32(b[:])
}
