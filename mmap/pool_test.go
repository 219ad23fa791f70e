package mmap

import (
	"bytes"
	"testing"
)

// TestPool allocates many blocks of all sizes, fills each with other data and frees them.
// They are used again, except those that are too long for the pools.
func TestPool(t *testing.T) {
	for _, size := range []int{1, 256, 257, 4096, 4097} {
		alloc := func() []byte {
			b, err := Alloc(size)
			if err != nil {
				t.Fatal(err)
			}
			if len(b) != size {
				t.Fatalf("%d bytes, not %d", len(b), size)
			}
			return b
		}
		var all [][]byte
		addrs := map[uint64]bool{}
		for i := range 50 {
			b := alloc()
			for j := range b {
				b[j] = byte(i)
			}
			all = append(all, b)
			addrs[Addr(b)] = true
		}
		for i, b := range all {
			if want := bytes.Repeat([]byte{byte(i)}, size); !bytes.Equal(b, want) {
				t.Fatalf("block %d of %d bytes has been written to by another", i, size)
			}
			Free(b)
		}
		b := alloc()
		if size <= 4096 && !addrs[Addr(b)] {
			t.Errorf("a block of %d bytes that was freed is not used again", size)
		}
		Free(b)
	}
}
