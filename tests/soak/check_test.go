package soak

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestContent: what was sent is right, and nothing else: not another message, not
// one that is cut, nor one with any byte damaged.
func TestContent(t *testing.T) {
	const k, most = key(0x1234), 4096
	room := make([]byte, most)
	sizes := map[int]int{}
	for seq := range uint64(500) {
		b := slices.Clone(k.message(seq, most, room))
		sizes[len(b)]++
		if err := k.check(seq, most, b); err != nil {
			t.Fatal(err)
		}
		if err := k.check(seq, most, append(slices.Clone(b), 0)); err == nil {
			t.Fatalf("message %d, of %d bytes, with another is accepted", seq, len(b))
		}
		if len(b) == 0 {
			continue
		}
		if err := k.check(seq, most, b[:len(b)-1]); err == nil {
			t.Fatalf("message %d, of %d bytes, is accepted without its last", seq, len(b))
		}
		for range 5 {
			i := rand.IntN(len(b))
			b[i] ^= 1
			if err := k.check(seq, most, b); err == nil {
				t.Fatalf("message %d, of %d bytes, is accepted with byte %d damaged", seq, len(b), i)
			}
			b[i] ^= 1
		}
		if len(b) >= header {
			if k.check(seq+1, most, b) == nil || k.answers().check(seq, most, b) == nil {
				t.Fatalf("message %d passes for another", seq)
			}
		}
	}
	if sizes[0] == 0 || sizes[most] == 0 || len(sizes) < 100 {
		t.Errorf("of 500 messages %d have nothing, %d are of the most, and there are %d sizes", sizes[0], sizes[most], len(sizes))
	}
}
