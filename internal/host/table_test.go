package host

import "testing"

type none struct{ Unsupported }

func (none) Close() {}

// TestDescriptorsWrap opens files until all descriptors have been used: they are used again, except
// those of open files.
func TestDescriptorsWrap(t *testing.T) {
	var open []int
	install := func() int {
		t.Helper()
		fd, errno := Install(none{}, "")
		if errno != 0 {
			t.Fatalf("%v, although %d files are open", errno, len(table.files))
		}
		open = append(open, fd)
		return fd
	}
	defer func() {
		for _, fd := range open {
			Close(fd)
		}
	}()
	table.Lock()
	first := table.next
	table.next = base
	table.Unlock()
	for table.files[base] == nil || table.files[base+1] == nil {
		install()
	}
	table.Lock()
	table.next = maxFD - 1
	table.Unlock()
	seen := map[int]bool{}
	for range 5 {
		fd := install()
		if fd < base || fd > maxFD || seen[fd] || fd == base || fd == base+1 {
			t.Errorf("descriptor %#x", fd)
		}
		seen[fd] = true
	}
	if !seen[maxFD] || !seen[maxFD-1] {
		t.Errorf("descriptors %v", seen)
	}
	table.Lock()
	table.next = max(first, table.next)
	table.Unlock()
}
