package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

const sample = `
enum { MLX5_A_ONE = 1, MLX5_A_NEXT, MLX5_A_SHIFT = 1ull << 5, MLX5_A_CHAR = sizeof(int), MLX5_A_UNKNOWN, MLX5_A_OR = (1 << 3) | 1 };
/* u8 gone[0x10]; */
union mlx5_ifc_variant {
	u8 small[0x8];
	struct mlx5_ifc_inner_bits large;
};

struct mlx5_ifc_inner_bits {
	u8         reserved_at_0[0x4];
	u8         low[0x4];
	u8         reserved_at_8[0x8];
};

struct mlx5_ifc_outer_bits {
	u8         first[0x1];
	u8         reserved_at_1[0x1f];
	struct mlx5_ifc_inner_bits inner[2];
	union mlx5_ifc_variant variant;
	u8         reserved_at_50[0x10];
	u8         list[][0x40];
};

struct mlx5_ifc_around_bits {
	struct mlx5_ifc_outer_bits outer;
	struct mlx5_ifc_elsewhere_bits other;
};
`

func TestHeader(t *testing.T) {
	h := newHeader(sample, map[string]bool{"AroundOther": true, "OuterInner": true, "OuterSize": true})
	s := h.structs["outer"]
	if s == nil || s.bits != 0x60 || s.missing != "" {
		t.Fatalf("outer: %+v", s)
	}
	if err := h.writeStruct(new(bytes.Buffer), "around"); err == nil || !strings.Contains(err.Error(), "elsewhere") {
		t.Errorf("a structure is missing: %v", err)
	}
	var written bytes.Buffer
	if err := h.writeStruct(&written, "outer"); err != nil || written.String() != "\n// struct mlx5_ifc_outer_bits\nOuterInner Field = 0x20<<16 | 0x20\nOuterSize = 0xc\n" {
		t.Errorf("outer, of which two are used: %v, %s", err, &written)
	}
	want := map[string][2]int{"first": {0, 1}, "inner": {0x20, 0x20}, "variant": {0x40, 0x10}, "list": {0x60, 0}}
	for _, f := range s.fields {
		if w, ok := want[f.name]; ok && (f.off != w[0] || f.bits() != w[1]) {
			t.Errorf("%s: %#x bits at %#x, want %#x", f.name, f.bits(), f.off, w)
		}
		delete(want, f.name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	// Of the union nothing is known to be reserved.
	if got, want := runs(h.reserved("outer", 0)), "[]Field{0x1<<16 | 0x1f, 0x20<<16 | 0x4, 0x28<<16 | 0x8, 0x30<<16 | 0x4, 0x38<<16 | 0x8, 0x50<<16 | 0x10}"; got != want {
		t.Errorf("reserved: %s, want %s", got, want)
	}
	var enums []string
	for _, e := range h.enums {
		enums = append(enums, e.name)
		if v := map[string]int64{"MLX5_A_ONE": 1, "MLX5_A_NEXT": 2, "MLX5_A_SHIFT": 32, "MLX5_A_OR": 9}[e.name]; e.value != v {
			t.Errorf("%s is %d, want %d", e.name, e.value, v)
		}
	}
	if got := strings.Join(enums, " "); got != "MLX5_A_ONE MLX5_A_NEXT MLX5_A_SHIFT MLX5_A_OR" {
		t.Errorf("enumerators: %s", got)
	}
}

// TestCompatible compares constants of two versions of the headers.
func TestCompatible(t *testing.T) {
	const old = "const (\n\tA  Field = 1\n\tLong = 2\n)\n\nvar R = []Field{1}\n"
	for source, want := range map[string]string{
		old: "", "const (\n\tA Field = 1\n\tB Field = 3\n\tLong   = 2\n)\n\nvar R = []Field{}\n": "",
		"const (\n\tA Field = 2\n\tLong = 2\n)\n": "A Field: was 1, is 2", "const (\n\tLong = 2\n)\n": "A Field: removed",
	} {
		if err := checkCompatible(old, source); (err == nil) != (want == "") || err != nil && err.Error() != want {
			t.Errorf("%q: %v, want %q", source, err, want)
		}
	}
}

// TestNotices gets the notice of each header, each once, and no other comment.
func TestNotices(t *testing.T) {
	const one, two = "/*\n * Copyright (c) 1, A.\n * AS IS\n*/", "/*\n * Copyright (c) 2, B.\n */"
	got := notices(one + sample + two + "\n/* u8 gone[0x10]; */\n" + two)
	if !slices.Equal(got, []string{one, two}) {
		t.Errorf("notices: %q", got)
	}
}
