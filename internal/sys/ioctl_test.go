package sys

import (
	"errors"
	"syscall"
	"testing"
)

// TestLongAttribute checks that an attribute that is too long is refused and not
// passed in part.
func TestLongAttribute(t *testing.T) {
	f := File{FD: -1} // for EBADF if Ioctl calls the kernel
	for n, want := range map[int]error{MaxAttr: syscall.EBADF, MaxAttr + 1: syscall.E2BIG, MaxAttr + 17: syscall.E2BIG} {
		b := make([]byte, n)
		for name, attr := range map[string]Attr{"in": InBytes(1, b), "out": OutBytes(1, b)} {
			if err := f.Ioctl(Call{Attrs: []Attr{attr}}); !errors.Is(err, want) {
				t.Errorf("%s: %d bytes: %v, want %v", name, n, err, want)
			}
		}
	}
}
