package cm

import (
	"math/rand/v2"
	"testing"

	"github.com/goverbs/verbs/abi"
)

// TestPathRecord decodes and encodes records of random bits, and what a program fills in itself.
func TestPathRecord(t *testing.T) {
	for range 1000 {
		r := abi.IbPathRecData{Flags: 1 | rand.Uint32()}
		for i := range r.PathRec {
			r.PathRec[i] = rand.Uint32()
		}
		var p PathRecord
		p.decode(&r)
		if again := p.encode(); again != r {
			t.Fatalf("%+v\nbecomes %x\nof      %x", p, again, r)
		}
		p.kernel = abi.IbPathRecData{}
		if again := p.encode(); again.Flags != 0x2b {
			t.Fatalf("flags %#x of a path that has none", again.Flags)
		}
		made := p.encode()
		var q PathRecord
		q.decode(&made)
		if q.kernel = p.kernel; q != p {
			t.Fatalf("%+v becomes %+v", p, q)
		}
	}
}
