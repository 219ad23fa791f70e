package workload

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/goverbs/verbs/internal/labtest"
)

// TestContent checks that Check accepts the output of Fill, but no other number, key or
// length, and no damaged byte.
func TestContent(t *testing.T) {
	const k = Key(0x1234)
	for seq := range uint64(200) {
		n := int(seq) * 13 % 4096
		if seq == 99 {
			n = 3 << 20 // longer than noise
		}
		b := k.Fill(make([]byte, n), seq)
		labtest.Check(t, k.Check("message", b, seq, n))
		wrong := func(what string, k Key, b []byte, seq uint64, n int) {
			t.Helper()
			if err := k.Check("message", b, seq, n); !errors.Is(err, ErrData) {
				t.Fatalf("message %d, of %d bytes, is accepted %s: %v", seq, n, what, err)
			}
		}
		wrong("with another byte", k, append(slices.Clone(b), 0), seq, n)
		if n == 0 {
			continue
		}
		wrong("without its last byte", k, b[:n-1], seq, n)
		for range 5 {
			i := rand.IntN(n)
			b[i] ^= 1
			wrong("damaged", k, b, seq, n)
			b[i] ^= 1
		}
		if n >= 16 {
			wrong("as another message", k, b, seq+1, n)
			wrong("as an answer", k.Peer(), b, seq, n)
			wrong("as another part", k, k.Fill(make([]byte, n+1), seq)[1:], seq, n)
		}
	}
}
