package extents

import (
	"math/rand/v2"
	"testing"
)

// TestList takes and returns blocks at random: they do not overlap, Take finds the first room if there
// is any, and in the end all is one run.
func TestList(t *testing.T) {
	const size = 40
	l := New(size)
	var used [size]bool
	blocks := map[int]int{}
	room := func(n int) (at int, ok bool) {
		free := 0
		for i, u := range used {
			if free++; u {
				free = 0
			}
			if free == n {
				return i + 1 - n, true
			}
		}
		return 0, false
	}
	mark := func(at, n int, as bool) {
		for i := at; i < at+n; i++ {
			if used[i] == as {
				t.Fatalf("byte %d is used twice, or returned twice", i)
			}
			used[i] = as
		}
	}
	put := func() {
		for at, n := range blocks {
			mark(at, n, false)
			l.Put(at, n)
			delete(blocks, at)
			break
		}
	}
	for range 20_000 {
		if rand.IntN(2) == 0 {
			put()
			continue
		}
		n := 1 + rand.IntN(9)
		want, fits := room(n)
		at, ok := l.Take(n)
		if at != want || ok != fits {
			t.Fatalf("%d bytes of %v: %d, %v, want %d, %v", n, used, at, ok, want, fits)
		}
		if ok {
			mark(at, n, true)
			blocks[at] = n
		}
	}
	for len(blocks) > 0 {
		put()
	}
	if len(l) != 1 || l[0] != (run{0, size}) {
		t.Errorf("in the end %v are free", l)
	}
}
