package soak

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goverbs/verbs/cm"
	"github.com/goverbs/verbs/internal/labtest"
)

// The profile of memory, which tests have by default, keeps a record of each size at each stack for ever.
func init() { runtime.MemProfileRate = 0 }

// thisProcess returns the resources of this process.
func thisProcess() (p process, err error) {
	status, err := numbers("/proc/self/status")
	if err != nil {
		return p, err
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return p, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return p, err
	}
	heap := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(heap)
	return process{
		RSS: status["VmRSS"], Heap: int(heap[0].Value.Uint64() >> 10), Pinned: status["VmPin"], Threads: status["Threads"],
		Files: len(files), Maps: strings.Count(string(maps), "\n"), Goroutines: runtime.NumGoroutine(),
	}, nil
}

// numbers reads a file of lines such as "VmRSS:   1234 kB".
func numbers(file string) (map[string]int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	values := map[string]int{}
	for line := range strings.Lines(string(text)) {
		name, rest, _ := strings.Cut(line, ":")
		var n int
		if _, err := fmt.Sscan(rest, &n); err == nil {
			values[name] = n
		}
	}
	return values, nil
}

// kernelState returns the number of objects of a device, and the kernel's memory.
func kernelState(device string) (map[string]int, error) {
	memory, err := numbers("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	state := map[string]int{"MemAvailable": memory["MemAvailable"], "Slab": memory["Slab"], "SUnreclaim": memory["SUnreclaim"]}
	resources, err := labtest.Resources()
	maps.Copy(state, resources[device])
	return state, err
}

// inventory returns labtest.Inventory, with or without the kernel's objects.
func inventory(t *testing.T, kernel bool) map[string]int {
	t.Helper()
	inv := labtest.Inventory(t)
	delete(inv, labtest.Anonymous)
	for name := range inv {
		if !kernel && strings.HasPrefix(name, "kernel ") {
			delete(inv, name)
		}
	}
	return inv
}

// warmUp creates what the first use leaves permanently: files of the runtime's poller.
func warmUp(t *testing.T, s *side) {
	t.Helper()
	l := labtest.Must(cm.Listen(t.Context(), s.addr+":0"))(t)
	labtest.Check(t, l.Close())
	labtest.SettledInventory(t)
}

// leaks waits until the inventory is as it was before, and returns the differences that
// remain. Objects that are cached for the next connection, or closed in the background,
// disappear after some seconds.
func leaks(t *testing.T, kernel bool, before map[string]int) (found []string) {
	t.Helper()
	for range 120 {
		found = nil
		now := inventory(t, kernel)
		for _, name := range slices.Sorted(maps.Keys(now)) {
			if now[name] != before[name] {
				found = append(found, fmt.Sprintf("%s: were %d, are %d", name, before[name], now[name]))
			}
		}
		if found == nil {
			return nil
		}
		time.Sleep(250 * time.Millisecond)
	}
	return append(found, stacks())
}
