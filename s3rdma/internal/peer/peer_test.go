package peer

import (
	"testing"

	"github.com/goverbs/verbs"
)

func gid(t *testing.T, s string) verbs.GID {
	g, err := verbs.ParseGID(s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestGID(t *testing.T) {
	var table []verbs.GIDEntry
	for i, s := range []string{"fe80::1", "fe80::1", "10.0.0.1", "10.0.0.1", "fd00::1"} {
		kind := verbs.GIDRoCEv2
		if i == 0 || i == 2 {
			kind = verbs.GIDRoCEv1
		}
		table = append(table, verbs.GIDEntry{Port: 1, Index: i, GID: gid(t, s), Type: kind})
	}
	for _, c := range []struct {
		table []verbs.GIDEntry
		to    string
		index int // -1 is an error
	}{
		{table, "fe80::2", 1},
		{table, "10.0.0.2", 3},
		{table, "fd00::2", 4},
		{table[:3], "10.0.0.2", 2}, // RoCE v1
		{table[:3], "fd00::2", 1},  // another scope
		{table[4:], "fe80::2", 4},
		{table[:2], "10.0.0.2", -1},
		{table[2:4], "fd00::2", -1},
		{table, "::", 3}, // by LID: any
		{nil, "10.0.0.2", -1},
	} {
		got, err := GID(c.table, gid(t, c.to))
		if (err == nil) != (c.index >= 0) || err == nil && got.Index != c.index {
			t.Errorf("%s: %+v, %v, want %d of %v", c.to, got, err, c.index, c.table)
		}
	}
}
