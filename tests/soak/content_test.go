package soak

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
)

// key names all that one side of a connection sends.
type key uint64

// answers is the key of the other side.
func (k key) answers() key { return ^k }

// noise is what messages are made of: a message is a piece of it, so that
// looking at one costs little more than looking at its bytes once.
var noise = func() []byte {
	b := make([]byte, 4<<20)
	rand.NewChaCha8([32]byte{'n', 'o', 'i', 's', 'e'}).Read(b)
	return b
}()

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// header is sequence number, length and CRC-32C of what follows. Messages too
// short for it are noise alone.
const header = 16

// piece is what the seq-th message has in it, of at most most bytes: nothing,
// as much as may be, or something in between, short ones being the most common.
func (k key) piece(seq uint64, most int) (head bool, body []byte) {
	r := rand.New(rand.NewPCG(uint64(k), seq))
	n := 0
	switch r.IntN(50) {
	case 0:
	case 1:
		n = most
	default:
		n = r.IntN(most+1) >> r.IntN(12)
	}
	if head = n >= header; head {
		n -= header
	}
	off := r.IntN(len(noise) - n + 1)
	return head, noise[off : off+n]
}

// message makes the seq-th message in room, which has space for most bytes.
func (k key) message(seq uint64, most int, room []byte) []byte {
	head, body := k.piece(seq, most)
	if !head {
		return room[:copy(room[:len(body)], body)]
	}
	b := room[:header+len(body)]
	copy(b[header:], body)
	binary.BigEndian.PutUint64(b, seq)
	binary.BigEndian.PutUint32(b[8:], uint32(len(b)))
	binary.BigEndian.PutUint32(b[12:], crc32.Checksum(body, castagnoli))
	return b
}

// check says how what came differs from the seq-th message.
func (k key) check(seq uint64, most int, got []byte) error {
	head, body := k.piece(seq, most)
	n := len(body)
	if head {
		n += header
	}
	switch {
	case len(got) >= header && head && binary.BigEndian.Uint64(got) != seq:
		return fmt.Errorf("message %d of key %#x: message %d came in its place, or it is damaged at offset 0: % x", seq, k, binary.BigEndian.Uint64(got), got[:header])
	case len(got) != n:
		return fmt.Errorf("message %d of key %#x: %d bytes came, not %d", seq, k, len(got), n)
	case !head:
		return differ(seq, k, 0, got, body)
	case int(binary.BigEndian.Uint32(got[8:])) != n:
		return fmt.Errorf("message %d of key %#x: its header says %d bytes, not %d", seq, k, binary.BigEndian.Uint32(got[8:]), n)
	}
	if err := differ(seq, k, header, got[header:], body); err != nil {
		return err
	}
	if got, want := binary.BigEndian.Uint32(got[12:]), crc32.Checksum(got[header:], castagnoli); got != want {
		return fmt.Errorf("message %d of key %#x: its CRC-32C is %08x, not %08x", seq, k, got, want)
	}
	return nil
}

// differ finds the first byte that differs.
func differ(seq uint64, k key, base int, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("message %d of key %#x, %d bytes: damaged from offset %d on: % x in place of % x", seq, k, base+len(want),
				base+i, got[i:min(i+16, len(got))], want[i:min(i+16, len(want))])
		}
	}
	return nil
}

// stream is the bytes of a key's stream.
func (k key) stream() *rand.ChaCha8 {
	var seed [32]byte
	binary.BigEndian.PutUint64(seed[:], uint64(k))
	return rand.NewChaCha8(seed)
}
