package abicheck

import (
	"os"
	"strings"
	"testing"
)

// TestLayoutAgainstKernel compares every type that the running kernel
// describes with ours. A kernel may lack members that newer headers have, which
// is logged; it must not have a member at another offset.
func TestLayoutAgainstKernel(t *testing.T) {
	if os.Getenv("VERBS_LAB") == "" {
		t.Skip("needs a kernel with RDMA and BTF: run by make test")
	}
	k, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range k.Absent {
		if module != "siw" && module != "erdma" && (module != "mlx5_ib" || strings.Contains(os.Getenv("VERBS_NIC"), "connectx")) {
			t.Errorf("module %s has no BTF", module)
		}
		t.Logf("the kernel has no %s", module)
	}
	var same, fewer, unknown int
	for _, typ := range Types() {
		d := k.Compare(typ)
		same += d.Same
		fewer += len(d.Fewer)
		switch {
		case d.Status == Unknown:
			t.Logf("the kernel's BTF has no %v", typ)
			unknown++
		case d.Status == Differs:
			t.Errorf("%v: %v", typ, d.Moved)
		case d.Status != Same:
			t.Logf("%v: %s: %q, %q", typ, d.Status, d.More, d.Fewer)
		}
	}
	t.Logf("%d members agree, the kernel lacks %d, %d types are not in its BTF", same, fewer, unknown)
	if same < 500 {
		t.Errorf("only %d members were compared", same)
	}
	for _, r := range k.Used() {
		if r.Breaks {
			t.Errorf("%s breaks: %s", r.Type, r.Why)
		}
	}
}
