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

// mappings counts the memory that is a mapping of its own: of device files, and of huge pages.
// Other memory, such as the queues of mlx5, is anonymous, and adjacent parts of it are one mapping.
var mappings atomic.Int64

// Mappings returns how many mappings this package has made in the process.
func Mappings() int { return int(mappings.Load()) }

// MaxMappings returns how many mappings the kernel allows the process (vm.max_map_count).
func MaxMappings() int {
	text, _ := os.ReadFile("/proc/sys/vm/max_map_count")
	if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil {
		return n
	}
	return 65530 // DEFAULT_MAX_MAP_COUNT
}

// maxTaken is the number of mappings that TakeMapping allowed when it last read the kernel's limit.
var maxTaken atomic.Int64

// TakeMapping counts a mapping, or fails if only a quarter of the mappings that the kernel allows
// is left: without any, Go's own memory cannot grow, and the runtime ends the program.
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
