package abicheck

import (
	"testing"

	"github.com/cilium/ebpf/btf"
)

var (
	u32 = &btf.Int{Name: "unsigned int", Size: 4}
	u64 = &btf.Int{Name: "unsigned long long", Size: 8}
)

// kernelType returns a structure with members one after the other.
func kernelType(members ...btf.Member) *btf.Struct {
	s := &btf.Struct{Name: "thing"}
	for _, m := range members {
		size, _ := btf.Sizeof(m.Type)
		m.Offset = btf.Bits(s.Size * 8)
		s.Size += uint32(size)
		s.Members = append(s.Members, m)
	}
	return s
}

// TestCompare changes a kernel's structure in every way that kernels do, and
// checks the effect on a command and on an element of a queue.
func TestCompare(t *testing.T) {
	ours := parse(`sizeof struct thing = 24
offsetof struct thing a = 0 size 8
offsetof struct thing b = 8 size 4
offsetof struct thing reserved = 12 size 4
offsetof struct thing u = 16 size 8
offsetof struct thing u.x = 16 size 4
offsetof struct thing u.y = 16 size 8
`)[0]
	a, b, reserved := btf.Member{Name: "a", Type: u64}, btf.Member{Name: "b", Type: u32}, btf.Member{Name: "reserved", Type: u32}
	union := func(members ...btf.Member) btf.Member {
		return btf.Member{Name: "u", Type: &btf.Union{Size: 8, Members: members}}
	}
	x, y := btf.Member{Name: "x", Type: u32}, btf.Member{Name: "y", Type: u64}
	u := union(x, y)
	for _, c := range []struct {
		name          string
		kernel        btf.Type
		want          Status
		command, elem bool // breaks
	}{
		{"the same", kernelType(a, b, reserved, u), Same, false, false},
		{"none", nil, Unknown, false, false},
		{"one more at the end", kernelType(a, b, reserved, u, btf.Member{Name: "z", Type: u64}), Newer, false, true},
		{"one more in the union", kernelType(a, b, reserved, union(x, y, btf.Member{Name: "z", Type: u64})), Newer, false, false},
		{"one more in what was reserved", kernelType(a, b, btf.Member{Name: "z", Type: u32}, u), Newer, false, false},
		{"one less in the union", kernelType(a, b, reserved, union(y)), Older, false, false},
		{"without the end", kernelType(a, b, reserved), Older, false, true},
		{"one more in the middle", kernelType(a, btf.Member{Name: "z", Type: u64}, b, reserved, u), Differs, true, true},
		{"wider", kernelType(a, btf.Member{Name: "b", Type: u64}, u), Differs, true, true},
		{"two exchanged", kernelType(b, reserved, a, u), Differs, true, true},
		{"in an unnamed structure", kernelType(btf.Member{Type: kernelType(a, b)}, reserved, u), Same, false, false},
		{"a flexible array more", kernelType(a, b, reserved, u, btf.Member{Name: "data", Type: &btf.Array{Type: u32}}), Same, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := compare(ours, c.kernel)
			if d.Status != c.want {
				t.Errorf("%s: %+v", d.Status, d)
			}
			for mapped, breaks := range map[bool]bool{false: c.command, true: c.elem} {
				r := use{feature: "things", mapped: mapped}.evaluate("struct thing", d, nil)
				if r.Breaks != breaks || (r.Why == "") != (c.want == Same) {
					t.Errorf("mapped %v: %+v", mapped, r)
				}
			}
		})
	}
}

func TestLost(t *testing.T) {
	d := Difference{Status: Older, Size: 8, KernelSize: 8, Fewer: []string{"wr.flush", "wr.flush.length", "other"}}
	if r := (use{feature: "rxe"}).evaluate("struct rxe_send_wr", d, nil); r.Why != "without RDMA FLUSH, other" {
		t.Errorf("%+v", r)
	}
	d.Status = Unknown
	if r := (use{module: "siw"}).evaluate("struct siw_cqe", d, []string{"siw"}); r.Why != "module siw is not loaded, or has no BTF" || r.Breaks {
		t.Errorf("%+v", r)
	}
	// Each key of memberFeatures is a member of ours.
	types := map[string]bool{}
	for _, typ := range Types() {
		for _, m := range typ.Members {
			types[typ.String()+" "+m.Path] = true
		}
	}
	for at := range memberFeatures {
		if !types[at] {
			t.Errorf("there is no %s", at)
		}
	}
}
