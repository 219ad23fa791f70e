package verbs

import (
	"errors"
	"fmt"
	"testing"
)

// TestErrNoDriver checks that a device that nothing can drive is as one that is not there, and is
// reported as unsupported.
func TestErrNoDriver(t *testing.T) {
	err := fmt.Errorf("open: %w", ErrNoDriver)
	for _, target := range []error{ErrNoDriver, ErrNoRDMA, errors.ErrUnsupported} {
		if !errors.Is(err, target) {
			t.Errorf("%v is not %v", err, target)
		}
	}
	if errors.Is(ErrNoDevice, errors.ErrUnsupported) || errors.Is(err, ErrNoDevice) {
		t.Error("a device that is not there is reported as unsupported")
	}
}
