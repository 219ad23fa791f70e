//go:build linux

package job

import (
	"errors"
	"io"
	"testing"

	"golang.org/x/sys/unix"
)

// failing is a writer that fails with an error.
type failing struct{ error }

func (f failing) Write([]byte) (int, error) { return 0, f.error }

// TestOutputError writes output where it cannot be written, which is an error unless the reader has gone.
func TestOutputError(t *testing.T) {
	var o Outlet
	for _, want := range []error{unix.ENOSPC, unix.EPIPE} {
		o.To(failing{want})
		if n, err := o.Write([]byte("x")); n != 1 || err != nil {
			t.Errorf("%v: the program sees %d, %v", want, n, err)
		}
		if err := OutputError(o.To(io.Discard)); want == unix.EPIPE && err != nil || want != unix.EPIPE && !errors.Is(err, want) {
			t.Errorf("%v: %v", want, err)
		}
		if err := o.To(io.Discard); err != nil {
			t.Errorf("%v again", err)
		}
	}
	if o.N.Load() != 2 {
		t.Errorf("%d bytes", o.N.Load())
	}
}
