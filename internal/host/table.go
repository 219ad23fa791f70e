package host

import (
	"sync"
	"syscall"
)

// base is the lowest descriptor of a [File]. The kernel's are below it: on Linux at most the sysctl
// fs.nr_open, which is at most 1<<30 - 16 on 32-bit machines and set to 1<<20 nearly everywhere.
const base = 1 << 30

// table has the open files. Descriptors are used again as late as possible, so that the use of a
// closed one fails.
var table = struct {
	sync.RWMutex
	next  int
	files map[int]*openFile
}{next: base, files: map[int]*openFile{}}

// maxFD is the highest descriptor.
const maxFD = 1<<31 - 1

// openFile is a file with the number of its descriptors.
type openFile struct {
	File
	path  string
	users int
}

// Install returns a new descriptor of f. path is what [PathOf] returns, for a device's file the
// path that it was opened by.
func Install(f File, path string) (int, syscall.Errno) {
	return install(&openFile{File: f, path: path})
}

func install(f *openFile) (int, syscall.Errno) {
	table.Lock()
	defer table.Unlock()
	if len(table.files) > maxFD-base {
		return -1, syscall.ENFILE
	}
	fd := table.next
	for table.files[fd] != nil {
		fd = after(fd)
	}
	table.files[fd] = f
	table.next = after(fd)
	f.users++
	return fd, 0
}

// after returns the descriptor that is tried after another one.
func after(fd int) int {
	if fd == maxFD {
		return base
	}
	return fd + 1
}

func lookup(fd int) *openFile {
	if fd < base {
		return nil
	}
	table.RLock()
	defer table.RUnlock()
	return table.files[fd]
}

// Get returns the file of a descriptor, or nil if there is none.
func Get(fd int) File {
	if f := lookup(fd); f != nil {
		return f.File
	}
	return nil
}

// Scheme begins the path of every node of this process.
const Scheme = "virtual:"

// nodes has the functions that open the nodes.
var nodes = struct {
	sync.RWMutex
	open map[string]func() (File, syscall.Errno)
}{open: map[string]func() (File, syscall.Errno){}}

// Provide makes a node, whose path begins with [Scheme], or replaces it. Open calls open. A nil
// function removes the node.
func Provide(path string, open func() (File, syscall.Errno)) {
	nodes.Lock()
	defer nodes.Unlock()
	if open == nil {
		delete(nodes.open, path)
	} else {
		nodes.open[path] = open
	}
}
