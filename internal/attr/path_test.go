package attr

import (
	"reflect"
	"testing"
)

// FuzzUnpackPath reads any path record: what it says is the same after packing.
func FuzzUnpackPath(f *testing.F) {
	f.Add(make([]byte, 64))
	all := make([]byte, 64)
	for i := range all {
		all[i] = 0xff
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 64 {
			return
		}
		p := UnpackPath(b)
		again := make([]byte, 64)
		p.Pack(again)
		if q := UnpackPath(again); !reflect.DeepEqual(p, q) {
			t.Errorf("%+v becomes %+v", p, q)
		}
	})
}
