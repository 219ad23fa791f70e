//go:build linux

package ifc

import (
	"bytes"
	"testing"
)

func TestField(t *testing.T) {
	b := bytes.Repeat([]byte{0xff}, 24)
	for _, c := range []struct {
		f    Field
		v    uint64
		want []byte // from the field's first byte
	}{
		{0<<16 | 8, 0x12, []byte{0x12, 0xff}},
		{0x4<<16 | 4, 0x3, []byte{0xf3, 0xff}},
		{0x1f<<16 | 1, 0, []byte{0xfe, 0xff}},
		{0xc<<16 | 0x14, 0x12345, []byte{0xf1, 0x23, 0x45, 0xff}},
		{0x20<<16 | 0x20, 0x89abcdef, []byte{0x89, 0xab, 0xcd, 0xef, 0xff}},
		{0x40<<16 | 0x40, 0x0123456789abcdef, []byte{1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0xff}},
		{0x44<<16 | 4, 0x1234, []byte{0xf4, 0xff}}, // takes what fits
	} {
		s := bytes.Clone(b)
		c.f.Set(s, c.v)
		if got := s[c.f.Off()/8:][:len(c.want)]; !bytes.Equal(got, c.want) {
			t.Errorf("field %#x set to %#x: % x, want % x", c.f, c.v, got, c.want)
		}
		if got, want := c.f.Get(s), c.v&(1<<c.f.Bits()-1); got != want {
			t.Errorf("field %#x: %#x, want %#x", c.f, got, want)
		}
		before := bytes.Count(s, []byte{0xff})
		if c.f.Set(s, 1<<c.f.Bits()-1); !bytes.Equal(s, b) {
			t.Errorf("field %#x: others have changed (%d)", c.f, before)
		}
	}
}

func TestFieldZero(t *testing.T) {
	f := Field(0xc<<16 | 0x45)
	for bit := range 0x60 {
		b := make([]byte, 12)
		b[bit/8] = 0x80 >> (bit % 8)
		if got, want := f.Zero(b), bit < 0xc || bit >= 0xc+0x45; got != want {
			t.Errorf("bit %#x: %v, want %v", bit, got, want)
		}
		if f.Clear(b); !f.Zero(b) || (b[bit/8] != 0) != (bit < 0xc || bit >= 0xc+0x45) {
			t.Errorf("bit %#x: % x after clear", bit, b)
		}
	}
	if !f.Zero(nil) {
		t.Error("a field beyond the end is not zero")
	}
}

// TestLayout compares some places and sizes with those that are computed by hand.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		name      string
		f         Field
		off, bits int
	}{
		{"create_eq_in.eq_context_entry", CreateEqInEqContextEntry, 0x80, 0x200},
		{"create_eq_out.eq_number", CreateEqOutEqNumber, 0x58, 8},
		{"query_pages_out.num_pages", QueryPagesOutNumPages, 0x60, 0x20},
		{"manage_pages_in.pas", ManagePagesInPas, 0x80, 0},
		{"cqc.dbr_addr", CqcDbrAddr, 0x1c0, 0x40},
	} {
		if c.f.Off() != c.off || c.f.Bits() != c.bits {
			t.Errorf("%s is %#x bits at %#x, want %#x at %#x", c.name, c.f.Bits(), c.f.Off(), c.bits, c.off)
		}
	}
	// The sizes that the headers' macros give.
	if got := [...]int{QpcSize, CqcSize, EqcSize, MkcSize, CmdHcaCapSize}; got != [...]int{232, 64, 64, 64, 256} {
		t.Errorf("sizes of contexts: %d", got)
	}
	if l := Layouts[OpQueryHcaCap]; l.In != 16 || l.Out != 4112 {
		t.Errorf("QUERY_HCA_CAP: %d and %d bytes", l.In, l.Out)
	}
	if Layouts[OpCreateQp].Name != "CREATE_QP" {
		t.Errorf("command %#x is %q", OpCreateQp, Layouts[OpCreateQp].Name)
	}
}
