package workload

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
)

// ErrData is matched by errors that say that data is wrong, which no fault excuses.
var ErrData = errors.New("the data is wrong")

// Key names all that one side of a connection sends.
type Key uint64

// Answers returns the key of the other side.
func (k Key) Answers() Key { return ^k }

// noise is what all data is taken from, so that checking it costs little more than
// comparing its bytes.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{'n', 'o', 'i', 's', 'e'}).Read(b)
	return b
})

// Fill makes b what the holder of k sends as number seq: the number, if it fits, and
// noise from a place on that key and number choose.
func (k Key) Fill(b []byte, seq uint64) []byte {
	rest, noise := b, noise()
	if len(b) >= 8 {
		binary.BigEndian.PutUint64(b, seq)
		rest = b[8:]
	}
	r := rand.NewPCG(uint64(k), seq)
	for off := r.Uint64() % uint64(len(noise)); len(rest) > 0; off = 0 {
		rest = rest[copy(rest, noise[off:]):]
	}
	return b
}

// Check reports how got differs from the n bytes that the holder of k sends as
// number seq.
func (k Key) Check(what string, got []byte, seq uint64, n int) error {
	if len(got) != n {
		return fmt.Errorf("%w: %s %d of key %#x has %d bytes, want %d", ErrData, what, seq, k, len(got), n)
	}
	want := k.Fill(make([]byte, n), seq)
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%w: %s %d of key %#x, %d bytes, differs from offset %d on: % x, want % x",
				ErrData, what, seq, k, n, i, got[i:min(i+16, n)], want[i:min(i+16, n)])
		}
	}
	return nil
}
