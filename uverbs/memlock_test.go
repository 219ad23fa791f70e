//go:build linux

package uverbs

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/goverbs/verbs"
	"github.com/goverbs/verbs/provider"
	"github.com/goverbs/verbs/provider/rxe"
)

// TestNoMemoryIsExplained: an error of a registration blames the limit of locked memory only if it
// is too low.
func TestNoMemoryIsExplained(t *testing.T) {
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &before); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_MEMLOCK, &before)
	o := newObject("rxe0", objectName{"PD %d", 1}, func() error { return nil })
	core := &contextCore{driver: rxe.Driver{}, dev: &provider.Device{Attr: verbs.DeviceAttr{MaxMR: 7}}}
	const small, large = 1 << 20, 1<<30 + 1
	for _, test := range []struct {
		limit  uint64
		length uint64
		want   string
	}{
		{64 << 10, small, "locked memory is limited to 64 KiB, of which 0 are in use, and this takes 1024: raise ulimit -l"},
		{64 << 10, 64<<10 - 1, "MaxMR is 7"},
		{64 << 10, 64<<10 + 1, "and this takes 68: raise ulimit -l"},
		{small, small, "MaxMR is 7"},
		{before.Max, small, "MaxMR is 7"},
		{64 << 10, large, "ulimit -l"},
		{before.Max, large, "1 GiB"},
	} {
		if test.limit > before.Max || test.limit < test.length && test.limit == before.Max {
			continue // this machine's limit is lower
		}
		if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: test.limit, Max: before.Max}); err != nil {
			t.Fatal(err)
		}
		err := core.failMemory(o, opRegister, unix.ENOMEM, 4096, test.length, verbs.AccessLocalWrite)
		if !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "ulimit") != strings.Contains(test.want, "ulimit") {
			t.Errorf("%d bytes, limit %d: %v, want %q", test.length, test.limit, err, test.want)
		}
	}
}
