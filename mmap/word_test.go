package mmap

import (
	"encoding/binary"
	"testing"
)

func TestWord(t *testing.T) {
	buf, err := NewBuffer(12, BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	b := buf.Bytes()
	binary.NativeEndian.PutUint32(b[8:], 0xdeadbeef)
	if got := Word(b, 8).Load(); got != 0xdeadbeef {
		t.Errorf("%#x is loaded", got)
	}
	Word(b, 4).Store(77)
	if got := binary.NativeEndian.Uint32(b[4:]); got != 77 || b[3] != 0 || b[8] == 0 {
		t.Errorf("stored: % x", b)
	}
	for _, off := range []int{-4, 2, 9, 12, 16} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a word at %d of %d bytes", off, len(b))
				}
			}()
			Word(b[:12:12], off)
		}()
	}
}
