package abicheck

import (
	"fmt"
	"strings"

	"github.com/goverbs/verbs/abi"
)

// Type is a structure of package abi, as C lays it out.
type Type struct {
	Kind, Name string // "struct", "siw_cqe"
	Size       int
	Members    []Member
}

// Member is one of a structure's members.
type Member struct {
	Path      string // "wr.rdma.rkey"
	Off, Size int
}

func (t Type) String() string { return t.Kind + " " + t.Name }

// Types returns all structures and unions of package abi.
func Types() []Type { return parse(abi.Layout()) }

func parse(layout string) []Type {
	var types []Type
	at := map[string]int{}
	for line := range strings.Lines(layout) {
		item, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		f := strings.Fields(item)
		if len(f) < 3 || f[0] != "sizeof" && f[0] != "offsetof" {
			continue
		}
		i, known := at[f[1]+" "+f[2]]
		if !known {
			i = len(types)
			at[f[1]+" "+f[2]] = i
			types = append(types, Type{Kind: f[1], Name: f[2]})
		}
		t := &types[i]
		if f[0] == "sizeof" && len(f) == 3 {
			fmt.Sscan(value, &t.Size)
		} else if f[0] == "offsetof" {
			m := Member{Path: f[3]}
			fmt.Sscanf(value, "%d size %d", &m.Off, &m.Size)
			t.Members = append(t.Members, m)
		}
	}
	return types
}
