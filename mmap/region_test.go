package mmap

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestUnmap closes regions that lie side by side or not, in any order.
func TestUnmap(t *testing.T) {
	page := os.Getpagesize()
	for _, order := range [][]int{{}, {1}, {0, 1}, {1, 0}, {0, 2}, {2, 0}, {0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {0, 2, 1}, {0, 3, 1}} {
		all, err := pages(-1, 0, 4*page, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		if err != nil {
			t.Fatal(err)
		}
		var regions []*Region
		var gone [4]bool
		for _, i := range order {
			regions = append(regions, &Region{all[i*page:][:page]}, nil)
			gone[i] = true
		}
		for range 2 {
			if err := Unmap(regions...); err != nil {
				t.Errorf("%v: %v", order, err)
			}
		}
		for i := range gone {
			part := all[i*page:][:page]
			if err := unix.Madvise(part, unix.MADV_NORMAL); gone[i] != errors.Is(err, unix.ENOMEM) {
				t.Errorf("%v: page %d: %v", order, i, err)
			}
			if !gone[i] {
				unmap(part)
			}
		}
	}
}
