package mmap

import (
	"encoding/binary"
	"testing"
)

// TestWord64 loads, adds and refuses what is not aligned, as TestWord does.
func TestWord64(t *testing.T) {
	buf, err := NewBuffer(24, BufferOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer buf.Close()
	b := buf.Bytes()
	binary.NativeEndian.PutUint64(b[8:], 1<<63|7)
	if got := Word64(b, 8).Add(1); got != 1<<63|8 || binary.NativeEndian.Uint64(b[8:]) != got || b[7] != 0 || b[16] != 0 {
		t.Errorf("%#x, % x", got, b)
	}
	for _, off := range []int{-8, 4, 1, 17, 24} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("a word at %d of %d bytes", off, len(b))
				}
			}()
			Word64(b[:24:24], off)
		}()
	}
}

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
