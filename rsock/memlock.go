package rsock

import (
	"github.com/goverbs/verbs/internal/sys"
	"github.com/goverbs/verbs/internal/unix"
)

// defaultBufferSize returns the default size of a ring. If locked memory is limited, it leaves
// room for later connections.
func defaultBufferSize() int {
	limit, used := sys.LockedMemory()
	if limit == unix.RLIM_INFINITY || unlimited() {
		return defaultBuffer
	}
	return share(limit, limit-min(used, limit))
}

// share returns a ring's size: a 96th of the limit if nothing is used, less as the rest
// shrinks.
func share(limit, left uint64) int {
	size := float64(left) / float64(limit) * float64(left) / 96
	return max(int(min(size, defaultBuffer))&^(page-1), minBuffer)
}

// unlimited reports whether the limit of locked memory does not apply.
func unlimited() bool {
	var data [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_IPC_LOCK) != 0
}
