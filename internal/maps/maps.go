// Package maps tells whether, and why not, a device can be given memory of this process. It knows
// nothing on systems other than Linux.
package maps

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
)

// Problem returns why the kernel refuses to register length bytes at addr with EFAULT, or "" if it
// does not know. write tells whether the device may write to them.
func Problem(addr, length uint64, write bool) string {
	end := addr + length
	for _, m := range mappings(addr, end) {
		switch {
		case m.start > addr:
			return fmt.Sprintf("nothing is mapped at %#x", addr)
		case m.perms[0] != 'r' && !write, m.perms[:2] == "--":
			return fmt.Sprintf("the memory at %#x is protected from reading (PROT_NONE)", addr)
		case write && m.perms[1] != 'w':
			return fmt.Sprintf("the memory at %#x is read-only: leave out AccessLocalWrite", addr)
		case write && m.onDisk():
			return fmt.Sprintf("the memory at %#x maps %s (MAP_SHARED), and devices can write to files only if they are in memory: tmpfs, memfd, hugetlbfs", addr, m.path)
		}
		addr = m.end
	}
	if addr < end {
		return fmt.Sprintf("nothing is mapped at %#x", addr)
	}
	return ""
}

// OnDisk reports whether a range contains a shared, writable mapping of a file that the kernel
// writes back. Devices cannot write to such pages (FOLL_LONGTERM, writable_file_mapping_allowed,
// since Linux 6.5). OnDisk checks the first page first, which must be present: ranges rarely span
// mappings, and reading the list of mappings takes long in a process that has many.
func OnDisk(addr, length uint64) bool {
	return filePage(addr) && slices.ContainsFunc(mappings(addr, addr+length), mapping.onDisk)
}

// filePage reports whether the page at addr is that of a file or of shared memory.
func filePage(addr uint64) bool {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return false
	}
	defer f.Close()
	var entry [8]byte
	if _, err := f.ReadAt(entry[:], int64(addr/uint64(os.Getpagesize())*8)); err != nil {
		return false
	}
	return binary.NativeEndian.Uint64(entry[:])&(1<<61) != 0 // PM_FILE
}

// mapping is a line of /proc/self/maps.
type mapping struct {
	start, end   uint64
	perms        string // rwxp; s instead of p if it is shared
	major, minor uint64 // of the file's device
	path         string
}

// mappings returns the mappings that overlap a range, in order.
func mappings(start, end uint64) []mapping {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	return parse(text, start, end)
}

func parse(text []byte, start, end uint64) (found []mapping) {
	for line := range bytes.Lines(text) {
		var m mapping
		var offset, inode uint64
		if n, _ := fmt.Sscanf(string(line), "%x-%x %s %x %x:%x %d", &m.start, &m.end, &m.perms, &offset, &m.major, &m.minor, &inode); n != 7 || len(m.perms) != 4 {
			continue
		}
		if m.start >= end {
			break
		}
		if m.end <= start {
			continue
		}
		if fields := strings.SplitN(strings.TrimSpace(string(line)), " ", 6); len(fields) == 6 {
			m.path = strings.TrimSpace(fields[5])
		}
		found = append(found, m)
	}
	return found
}

// onDisk reports whether the kernel writes the mapped file back. File systems on block devices have
// a major number. Others are mounted, except those internal to the kernel, such as memfd's.
func (m mapping) onDisk() bool {
	if m.perms[1] != 'w' || m.perms[3] != 's' {
		return false
	}
	if m.major != 0 {
		return true
	}
	switch filesystem(fmt.Sprintf("%d:%d", m.major, m.minor)) {
	case "", "tmpfs", "devtmpfs", "ramfs", "hugetlbfs":
		return false
	}
	return true
}

// filesystem returns the type of the file system of a device, such as ext4, or an empty string
// if none is mounted.
func filesystem(device string) string {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		if len(fields) < 3 || fields[2] != device {
			continue
		}
		if _, rest, ok := strings.Cut(string(line), " - "); ok {
			return strings.Fields(rest)[0]
		}
	}
	return ""
}
