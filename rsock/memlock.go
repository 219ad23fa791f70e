package rsock

import (
	"math/bits"

	"github.com/goverbs/verbs/internal/sys"
)

// defaultBufferSize returns the default size of a ring. If locked memory is limited, it leaves
// room for later connections.
func defaultBufferSize() int {
	limit, used := sys.LockedMemory()
	if limit == sys.Unlimited || sys.LocksFreely() {
		return defaultBuffer
	}
	return share(limit, limit-min(used, limit))
}

// share returns a ring's size: a 96th of the limit if nothing is used, less as the rest shrinks.
func share(limit, left uint64) int {
	size := float64(left) / float64(limit) * float64(left) / 96
	return max(int(min(size, defaultBuffer))&^(page-1), minBuffer)
}

// queueSizes returns the default sizes of the queues of a connection whose rings have ring bytes by
// default: a receive for each 128 bytes of the ring, as small queues slow down small messages.
//
// Adapters have their queues in the process's locked memory, in rings whose lengths are powers of
// two. A CQ's ring has two places more than there are requests, one from cm and one from mlx5_ib,
// so the sizes are just below a power of two. On ConnectX the queues of a connection take 68 KiB
// with 256 places, 36 with 128, and 20 with 64, where each CQ is a page.
func queueSizes(ring int) (sends, recvs int) {
	places := 1 << (bits.Len(uint(min(max(ring/128, 64), 256))) - 1)
	return places - 2, places - 2 - spareRecvs
}
