package workload

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"sync"
)

// ErrData is matched by errors that report wrong data, which no fault may cause.
var ErrData = errors.New("the data is wrong")

// Key determines all data that one side of a connection sends.
type Key uint64

// Peer returns the key of the other side.
func (k Key) Peer() Key { return ^k }

// noise returns the bytes from which all data is taken, so that checking data costs little
// more than comparing its bytes.
var noise = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20)
	rand.NewChaCha8([32]byte{'n', 'o', 'i', 's', 'e'}).Read(b)
	return b
})

// content yields the n bytes that the side with key k sends as number seq, in pieces: the
// number, if it fits, and noise from an offset that depends on key and number.
func (k Key) content(seq uint64, n int) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		at := 0
		if n >= 8 {
			if !yield(0, binary.BigEndian.AppendUint64(nil, seq)) {
				return
			}
			at = 8
		}
		noise := noise()
		for off := int(rand.NewPCG(uint64(k), seq).Uint64() % uint64(len(noise))); at < n; off = 0 {
			piece := noise[off:min(off+n-at, len(noise))]
			if !yield(at, piece) {
				return
			}
			at += len(piece)
		}
	}
}

// Fill fills b with what the side with key k sends as number seq.
func (k Key) Fill(b []byte, seq uint64) []byte {
	for at, piece := range k.content(seq, len(b)) {
		copy(b[at:], piece)
	}
	return b
}

// Check returns an error if got differs from the n bytes that the side with key k sends
// as number seq.
func (k Key) Check(what string, got []byte, seq uint64, n int) error {
	if len(got) != n {
		return fmt.Errorf("%w: %s %d of key %#x has %d bytes, want %d", ErrData, what, seq, k, len(got), n)
	}
	for at, want := range k.content(seq, n) {
		got := got[at:][:len(want)]
		if bytes.Equal(got, want) {
			continue
		}
		i := 0
		for got[i] == want[i] {
			i++
		}
		return fmt.Errorf("%w: %s %d of key %#x, %d bytes, differs from offset %d on: % x, want % x",
			ErrData, what, seq, k, n, at+i, got[i:min(i+16, len(got))], want[i:min(i+16, len(want))])
	}
	return nil
}
