package sys

import (
	"bufio"
	"fmt"
	"os"

	"github.com/goverbs/verbs/internal/unix"
)

// WholePages rounds n up to whole pages, which the kernel counts as locked.
func WholePages(n uint64) uint64 {
	page := uint64(os.Getpagesize())
	return (n + page - 1) &^ (page - 1)
}

// LockedMemory returns the limit of locked memory (RLIMIT_MEMLOCK), and how much of it
// the process has registered, in bytes. The limit is unix.RLIM_INFINITY if there is none.
func LockedMemory() (limit, used uint64) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return unix.RLIM_INFINITY, 0
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return r.Cur, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if _, err := fmt.Sscanf(s.Text(), "VmPin: %d kB", &used); err == nil {
			break
		}
	}
	return r.Cur, used << 10
}
