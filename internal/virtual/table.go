package virtual

import (
	"strings"
	"sync"
	"syscall"
)

// Base is the lowest descriptor of a virtual file. The kernel's are below it: on Linux at most
// the sysctl fs.nr_open, which is at most 1<<30 - 16 on 32-bit machines and set to 1<<20 nearly
// everywhere.
const Base = 1 << 30

// Is reports whether a descriptor is that of a virtual file.
func Is(fd int) bool { return fd >= Base }

// table has the open files. Descriptors are used again as late as possible, so that the use of a
// closed one fails.
var table = struct {
	sync.RWMutex
	next  int
	files map[int]*openFile
}{next: Base, files: map[int]*openFile{}}

// maxFD is the highest descriptor.
const maxFD = 1<<31 - 1

// openFile is a file with the number of its descriptors.
type openFile struct {
	File
	name  string
	users int
}

// Install returns a new descriptor of f. name is for error texts, and for a device's file the
// path that it was opened by.
func Install(f File, name string) (int, syscall.Errno) {
	return install(&openFile{File: f, name: name})
}

func install(f *openFile) (int, syscall.Errno) {
	table.Lock()
	defer table.Unlock()
	if len(table.files) > maxFD-Base {
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
		return Base
	}
	return fd + 1
}

func lookup(fd int) *openFile {
	if !Is(fd) {
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

// Name returns the name with which a descriptor's file was installed, or "".
func Name(fd int) string {
	if f := lookup(fd); f != nil {
		return f.name
	}
	return ""
}

// Dup returns another descriptor of the same file.
func Dup(fd int) (int, syscall.Errno) {
	f := lookup(fd)
	if f == nil {
		return -1, syscall.EBADF
	}
	return install(f)
}

// Close closes a descriptor.
func Close(fd int) syscall.Errno {
	table.Lock()
	f := table.files[fd]
	if f == nil {
		table.Unlock()
		return syscall.EBADF
	}
	delete(table.files, fd)
	f.users--
	last := f.users == 0
	table.Unlock()
	if last {
		f.Close()
	}
	return 0
}

// Ioctl, Write, Read and Mmap call the method of a descriptor's file.
func Ioctl(fd int, request uint32, msg []byte) syscall.Errno {
	if f := Get(fd); f != nil {
		return f.Ioctl(request, msg)
	}
	return syscall.EBADF
}

func Write(fd int, b []byte) (int, syscall.Errno) {
	if f := Get(fd); f != nil {
		return f.Write(b)
	}
	return 0, syscall.EBADF
}

func Read(fd int, b []byte) (int, syscall.Errno) {
	if f := Get(fd); f != nil {
		return f.Read(b)
	}
	return 0, syscall.EBADF
}

func Mmap(fd int, offset int64, length int) ([]byte, syscall.Errno) {
	if f := Get(fd); f != nil {
		return f.Mmap(offset, length)
	}
	return nil, syscall.EBADF
}

// Scheme begins the path of every virtual node.
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

// IsNode reports whether path is that of a virtual node.
func IsNode(path string) bool { return strings.HasPrefix(path, Scheme) }

// Open opens a node. It fails with ENOENT if there is none.
func Open(path string) (int, syscall.Errno) {
	nodes.RLock()
	open := nodes.open[path]
	nodes.RUnlock()
	if open == nil {
		return -1, syscall.ENOENT
	}
	f, errno := open()
	if errno != 0 {
		return -1, errno
	}
	return Install(f, path)
}
