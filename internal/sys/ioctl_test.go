package sys

import (
	"errors"
	"testing"

	"github.com/goverbs/verbs/internal/unix"
)

// TestLongAttribute checks that an attribute that is too long is refused and not
// passed in part.
func TestLongAttribute(t *testing.T) {
	f := File{FD: -1} // for EBADF if Ioctl calls the kernel
	for n, want := range map[int]error{MaxAttr: unix.EBADF, MaxAttr + 1: unix.E2BIG, MaxAttr + 17: unix.E2BIG} {
		b := make([]byte, n)
		for name, attr := range map[string]Attr{"in": InBytes(1, b), "out": OutBytes(1, b)} {
			if err := f.Ioctl(Call{Attrs: []Attr{attr}}); !errors.Is(err, want) {
				t.Errorf("%s: %d bytes: %v, want %v", name, n, err, want)
			}
		}
	}
}
