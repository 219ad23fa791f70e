package s3rdma

import (
	"math"
	"strings"
	"testing"
)

// FuzzContentRange has a server that says any range: it has at least a byte, or does not say.
func FuzzContentRange(f *testing.F) {
	f.Add("bytes 0-99/100")
	f.Add("bytes 5-4/*")
	f.Add("bytes -9223372036854775808-9223372036854775807/1")
	f.Fuzz(func(t *testing.T, s string) {
		if n := contentRange(s); n != -1 && (n < 1 || n > math.MaxInt64/2 || !strings.HasPrefix(s, "bytes ")) {
			t.Errorf("%q has %d bytes", s, n)
		}
	})
}
