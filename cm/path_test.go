package cm

import (
	"math/rand/v2"
	"testing"

	"github.com/goverbs/verbs/abi"
	"github.com/goverbs/verbs/mmap"
)

// TestPathRecord decodes and encodes records of random bits.
func TestPathRecord(t *testing.T) {
	for range 1000 {
		var r abi.IbPathRecData
		r.Flags = rand.Uint32()
		for i := range r.PathRec {
			r.PathRec[i] = rand.Uint32()
		}
		var p PathRecord
		p.decode(&r)
		again := p.encode()
		for _, b := range [][]byte{mmap.Bytes(&r.PathRec), mmap.Bytes(&again.PathRec)} {
			b[pathFlow] &^= 0x70 // reserved
			clear(b[pathPrefer+1:])
		}
		if again != r {
			t.Fatalf("%+v\nbecomes %x\nof      %x", p, again, r)
		}
	}
}
