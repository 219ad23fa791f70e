package faults

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// inventory is what a leak would show in: by name, how many.
func inventory(t *testing.T) map[string]int {
	t.Helper()
	runtime.GC()
	inv := map[string]int{"goroutines": runtime.NumGoroutine()}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	inv["files"] = len(fds)
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		switch {
		case strings.Contains(line, "/dev/infiniband"):
			inv["maps of queues"]++
		// The heap and thread stacks come and go in anonymous memory, too;
		// they are told from buffers by their names.
		case !strings.Contains(line, "/") && !strings.Contains(line, "["):
			inv["anonymous maps"]++
		}
	}
	resources, err := netlink.RdmaResourceList()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources {
		for name, n := range r.RdmaResourceSummaryEntries {
			inv["kernel "+name+" of "+r.Name] = int(n)
		}
	}
	return inv
}

// sameInventory waits, for what ends in the background, until the inventory
// is as it was.
func sameInventory(t *testing.T, before map[string]int) {
	t.Helper()
	var now map[string]int
	for range 100 {
		if now = inventory(t); maps.Equal(now, before) {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	names := slices.Sorted(maps.Keys(now))
	for _, n := range names {
		if now[n] != before[n] {
			t.Errorf("%s: were %d, are %d", n, before[n], now[n])
		}
	}
	if t.Failed() {
		buf := make([]byte, 1<<20)
		fmt.Printf("%s\n", buf[:runtime.Stack(buf, true)])
		text, _ := os.ReadFile("/proc/self/maps")
		fmt.Printf("%s\n", text)
	}
}
