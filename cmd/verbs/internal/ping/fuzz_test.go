package ping

import (
	"bytes"
	"testing"
)

// FuzzBuffer parses arbitrary messages: a buffer that is accepted fits the server's buffer, and
// encodes to the same message.
func FuzzBuffer(f *testing.F) {
	f.Add(buffer{0x7f0000001000, 0x1234, 64}.bytes())
	f.Add(buffer{^uint64(0), ^uint32(0), ^uint32(0)}.bytes())
	f.Add(buffer{size: maxSize + 1}.bytes())
	f.Add([]byte("rdma-ping-0: ABC"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		at, err := parseBuffer(b)
		if (err == nil) != (len(b) == bufferSize) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(at.bytes(), b) {
			t.Errorf("%x is taken for %v", b, at)
		}
		buf := make([]byte, maxSize)
		if err == nil && at.fits() == nil && len(text(buf[:at.size])) > maxSize {
			t.Errorf("%v fits", at)
		}
	})
}
