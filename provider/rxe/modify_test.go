package rxe

import (
	"errors"
	"testing"
)

// TestMoreReads lets a QP answer more READs than its array in the kernel has room for, which are powers of 2.
func TestMoreReads(t *testing.T) {
	for _, test := range []struct {
		first, then int
		ok          bool
	}{{0, 0, true}, {0, 1, false}, {1, 1, true}, {1, 2, false}, {3, 4, true}, {4, 3, true}, {4, 5, false}, {128, 128, true}} {
		q := sendQueue{reads: slots(test.first)}
		if err := q.checkReads(test.then, "7.2.13"); (err == nil) != test.ok || !test.ok && !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%d after %d: %v", test.then, test.first, err)
		}
		if err := q.checkReads(test.then, "7.3.0"); err != nil {
			t.Errorf("%d after %d on 7.3: %v", test.then, test.first, err)
		}
	}
	if err := new(sendQueue).checkReads(128, ""); err != nil {
		t.Errorf("at first: %v", err)
	}
}
