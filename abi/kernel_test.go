package abi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
)

// TestLayoutAgainstKernel compares every type that the running kernel
// describes with ours. A kernel may lack what newer headers have, which is
// reported; it must not have anything elsewhere.
func TestLayoutAgainstKernel(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs a kernel with RDMA and BTF: run by make test")
	}
	var specs []*btf.Spec
	base, err := btf.LoadKernelSpec()
	if err != nil {
		t.Fatal(err)
	}
	specs = append(specs, base)
	for _, module := range []string{"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw"} {
		f, err := os.Open(filepath.Join("/sys/kernel/btf", module))
		if errors.Is(err, os.ErrNotExist) && module == "siw" {
			t.Log("the kernel has no siw")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		s, err := btf.LoadSplitSpecFromReader(f, base)
		if err != nil {
			t.Fatalf("%s: %v", module, err)
		}
		specs = append(specs, s)
	}

	var same, lacking int
	unknown := map[string]bool{}
	for line := range strings.Lines(readLayout(t)) {
		item, value, _ := strings.Cut(strings.TrimSpace(line), " = ")
		f := strings.Fields(item)
		if len(f) < 3 || f[0] != "offsetof" {
			continue
		}
		c, path := f[1]+" "+f[2], f[3]
		typ := find(specs, f[1], f[2])
		if typ == nil {
			unknown[c] = true
			continue
		}
		off, size, err := locate(typ, path)
		switch {
		case err != nil:
			t.Logf("the kernel lacks %s.%s", c, path)
			lacking++
		case reserved(path, value, off, size):
			same++
		case value != fmt.Sprintf("%d size %d", off, size):
			t.Errorf("%s.%s is at %s, the kernel has it at %d size %d", c, path, value, off, size)
		default:
			same++
		}
	}
	for c := range unknown {
		t.Logf("the kernel's BTF has no %s", c)
	}
	t.Logf("%d members agree, the kernel lacks %d, %d types are not in its BTF", same, lacking, len(unknown))
	if same < 500 {
		t.Errorf("only %d members were compared", same)
	}
}

// reserved says whether a member is what newer headers have left of a larger
// reserved one.
func reserved(path, value string, off, size int) bool {
	var ourOff, ourSize int
	fmt.Sscanf(value, "%d size %d", &ourOff, &ourSize)
	name := path[strings.LastIndex(path, ".")+1:]
	return strings.HasPrefix(name, "reserved") && off <= ourOff && ourOff+ourSize <= off+size
}

func find(specs []*btf.Spec, kind, tag string) btf.Type {
	for _, s := range specs {
		types, _ := s.AnyTypesByName(tag)
		for _, t := range types {
			switch t.(type) {
			case *btf.Struct:
				if kind == "struct" {
					return t
				}
			case *btf.Union:
				if kind == "union" {
					return t
				}
			}
		}
	}
	return nil
}

// locate finds a member of t, or of an unnamed type inside it; a path's
// "[0]" stands for an element.
func locate(t btf.Type, path string) (off, size int, err error) {
	head, rest, nested := strings.Cut(path, ".")
	name, element := strings.CutSuffix(head, "[0]")
	m, base, ok := member(t, name)
	if !ok {
		return 0, 0, errors.New("no such member")
	}
	mt := btf.UnderlyingType(m.Type)
	if a, isArray := mt.(*btf.Array); isArray && element {
		mt = btf.UnderlyingType(a.Type)
	}
	if nested {
		off, size, err = locate(mt, rest)
		return base + off, size, err
	}
	size, err = btf.Sizeof(mt)
	return base, size, err
}

func member(t btf.Type, name string) (btf.Member, int, bool) {
	var members []btf.Member
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Struct:
		members = t.Members
	case *btf.Union:
		members = t.Members
	}
	for _, m := range members {
		off := int(m.Offset.Bytes())
		if m.Name == name {
			return m, off, true
		}
		if m.Name == "" {
			if found, inner, ok := member(m.Type, name); ok {
				return found, off + inner, true
			}
		}
	}
	return btf.Member{}, 0, false
}
