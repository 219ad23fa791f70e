package mmap

import "testing"

// TestScratch has what was freed come back, and long ones not kept.
func TestScratch(t *testing.T) {
	a, err := Scratch(8)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Scratch(8)
	if err != nil {
		t.Fatal(err)
	}
	if a.Addr() == b.Addr() {
		t.Error("two have the same memory")
	}
	FreeScratch(b)
	c, err := Scratch(scratchSize)
	if err != nil {
		t.Fatal(err)
	}
	if c != b {
		t.Error("what was freed is not used again")
	}
	FreeScratch(a)
	FreeScratch(c)
	long, err := Scratch(scratchSize + 1)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(long.Bytes()); n != scratchSize+1 {
		t.Errorf("%d bytes", n)
	}
	FreeScratch(long)
	if long.Bytes() != nil {
		t.Error("a long one was kept")
	}
}
