package sys

import (
	"bufio"
	"fmt"
	"math"
	"os"
)

// WholePages rounds n up to whole pages, which the kernel counts as locked.
func WholePages(n uint64) uint64 {
	page := uint64(os.Getpagesize())
	return (n + page - 1) &^ (page - 1)
}

// Unlimited is the limit of LockedMemory if there is none.
const Unlimited = math.MaxUint64

// LockedMemory returns the limit of locked memory (RLIMIT_MEMLOCK), and how much of it
// the process has registered, in bytes.
func LockedMemory() (limit, used uint64) {
	limit = memlockLimit()
	if limit == Unlimited {
		return limit, 0
	}
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return limit, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if _, err := fmt.Sscanf(s.Text(), "VmPin: %d kB", &used); err == nil {
			break
		}
	}
	return limit, used << 10
}
