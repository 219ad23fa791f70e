package host

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// ErrMappings is the error of a mapping for which the process has no room. It matches ENOMEM.
var ErrMappings = fmt.Errorf("too many mappings: %w", syscall.ENOMEM)

// mappings counts what takes a mapping of the process by itself: those of device files, and of huge
// pages. Others, such as the queues of mlx5, are anonymous memory, of which the kernel makes one
// mapping where parts are adjacent.
var mappings atomic.Int64

// Mappings returns how many mappings the process has by this package.
func Mappings() int { return int(mappings.Load()) }

// MaxMappings returns how many mappings the kernel allows the process (vm.max_map_count).
func MaxMappings() int {
	const usual = 65530
	text, err := os.ReadFile("/proc/sys/vm/max_map_count")
	if err != nil {
		return usual
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return usual
	}
	return n
}

// maxTaken is the most mappings that TakeMapping allowed when it last looked.
var maxTaken atomic.Int64

// TakeMapping counts a mapping, or fails if it is of the last quarter of those that the kernel
// allows: without any left, Go's own memory cannot grow, and the runtime ends the program.
func TakeMapping() error {
	n := mappings.Add(1)
	if n <= maxTaken.Load() {
		return nil
	}
	limit := MaxMappings()
	maxTaken.Store(int64(limit - limit/4))
	if n <= maxTaken.Load() {
		return nil
	}
	mappings.Add(-1)
	return fmt.Errorf("%w: %d are of queues, the most that leave enough of the kernel's %d to others: raise vm.max_map_count, or share CQs and receive queues", ErrMappings, n-1, limit)
}

// ReturnMapping undoes TakeMapping.
func ReturnMapping() { mappings.Add(-1) }
