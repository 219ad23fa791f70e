package abicheck

import (
	"slices"
	"testing"
)

// others lists the structures of package abi that only package soft and tests use, for commands
// that programs of this project do not make.
var others = use{types: `ib_uverbs_ex_modify_qp`}

// TestUses checks that the table of uses has each structure of package abi once. The
// generator writes those that the code uses, and the ones inside them.
func TestUses(t *testing.T) {
	listed := others.names()
	for _, u := range uses {
		listed = append(listed, u.names()...)
	}
	var generated []string
	for _, typ := range Types() {
		generated = append(generated, typ.String())
	}
	for i, name := range listed {
		if slices.Contains(listed[:i], name) {
			t.Errorf("%s is there twice", name)
		}
		if !slices.Contains(generated, name) {
			t.Errorf("%s is in the table, and not used", name)
		}
	}
	for _, name := range generated {
		if !slices.Contains(listed, name) {
			t.Errorf("%s is used, and not in the table", name)
		}
	}
}
