package mmap

import (
	"bytes"
	"testing"
)

// TestCells has more cells than are mapped at once, each with something else in it.
func TestCells(t *testing.T) {
	var all []*Cell
	for i := range 3 * cellsAtOnce {
		c, err := NewCell()
		if err != nil {
			t.Fatal(err)
		}
		for j := range c {
			c[j] = byte(i)
		}
		all = append(all, c)
	}
	for i, c := range all {
		if want := bytes.Repeat([]byte{byte(i)}, len(c)); !bytes.Equal(c[:], want) {
			t.Fatalf("cell %d at %#x has been written to by another", i, c.Addr())
		}
		FreeCell(c)
	}
	mapped := len(cells.free)
	c, err := NewCell()
	if err != nil {
		t.Fatal(err)
	}
	FreeCell(c)
	if len(cells.free) != mapped {
		t.Errorf("%d cells, not %d as before", len(cells.free), mapped)
	}
}
