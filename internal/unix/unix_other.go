//go:build !linux || nordma

package unix

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/goverbs/verbs"
)

// errLinux is the error of all system calls.
var errLinux = fmt.Errorf("%w on %s: %w", verbs.ErrNoRDMA, runtime.GOOS, errors.ErrUnsupported)

const (
	CAP_IPC_LOCK = iota
	EFD_CLOEXEC
	EFD_NONBLOCK
	EPOLLET
	EPOLL_CLOEXEC
	EPOLL_CTL_ADD
	EPOLL_CTL_DEL
	F_DUPFD_CLOEXEC
	LINUX_CAPABILITY_VERSION_3
	LOCK_EX
	LOCK_NB
	POLLIN
	PROT_READ
	PROT_WRITE
	RLIMIT_MEMLOCK
	RLIM_INFINITY
	SIG_SETMASK
	SYS_IOCTL
	SYS_WRITE
)

// Flags of MmapPtr.
const (
	MAP_ANONYMOUS = 1 << iota
	MAP_HUGETLB
	MAP_PRIVATE
	MAP_SHARED
	MAP_HUGE_SHIFT
)

// As on Linux, for sets that have virtual files only.
const EPOLLIN, EPOLLERR = 1, 8

// As on Linux, for addresses.
const (
	AF_INET             = 2
	AF_INET6            = 10
	SizeofSockaddrInet4 = 16
	SizeofSockaddrInet6 = 28
)

// Flags of files, which have no effect.
const O_CLOEXEC, O_CREAT, O_NOFOLLOW, O_NONBLOCK, O_RDWR = 0, 0, 0, 0, 0

type (
	CapUserData   struct{ Effective uint32 }
	CapUserHeader struct{ Version uint32 }
	EpollEvent    struct {
		Events uint32
		Fd     int32
	}
	PollFd struct {
		Fd              int32
		Events, Revents int16
	}
	Rlimit   struct{ Cur, Max uint64 }
	Sigset_t struct{ Val [16]uint64 }
	Timespec struct{}
	Utsname  struct{ Release [65]byte }
)

func ByteSliceToString(b []byte) string                             { return "" }
func Capget(*CapUserHeader, *CapUserData) error                     { return errLinux }
func closeFile(int) error                                           { return errLinux }
func Dup3(from, to, flags int) error                                { return errLinux }
func EpollCreate1(int) (int, error)                                 { return -1, errLinux }
func EpollCtl(set, op, fd int, event *EpollEvent) error             { return errLinux }
func EpollWait(int, []EpollEvent, int) (int, error)                 { return 0, errLinux }
func ErrnoName(syscall.Errno) string                                { return "" }
func Eventfd(initial uint, flags int) (int, error)                  { return -1, errLinux }
func fcntlInt(fd uintptr, cmd, arg int) (int, error)                { return -1, errLinux }
func Flock(fd, how int) error                                       { return errLinux }
func Getrlimit(int, *Rlimit) error                                  { return errLinux }
func Gettid() int                                                   { return 0 }
func NsecToTimespec(int64) Timespec                                 { return Timespec{} }
func open(string, int, uint32) (int, error)                         { return -1, errLinux }
func Ppoll([]PollFd, *Timespec, *Sigset_t) (int, error)             { return 0, errLinux }
func PthreadSigmask(how int, set, old *Sigset_t) error              { return errLinux }
func read(int, []byte) (int, error)                                 { return 0, errLinux }
func SetNonblock(int, bool) error                                   { return errLinux }
func Uname(*Utsname) error                                          { return errLinux }
func write(int, []byte) (int, error)                                { return 0, errLinux }
func Syscall(_, _, _, _ uintptr) (_, _ uintptr, _ syscall.Errno)    { return 0, 0, syscall.EOPNOTSUPP }
func RawSyscall(_, _, _, _ uintptr) (_, _ uintptr, _ syscall.Errno) { return 0, 0, syscall.EOPNOTSUPP }
func SchedYield()                                                   {}
func ioctl(int, uint32, []byte) syscall.Errno                       { return syscall.EOPNOTSUPP }

// MmapPtr returns zeroed memory of Go that is aligned to 4 KiB, for MAP_ANONYMOUS.
func MmapPtr(fd int, _ int64, _ unsafe.Pointer, length uintptr, _, flags int) (unsafe.Pointer, error) {
	const page = 4 << 10
	if flags&MAP_ANONYMOUS == 0 || flags&MAP_HUGETLB != 0 {
		return nil, errLinux
	}
	b := make([]byte, length+page-1)
	p := unsafe.Pointer(unsafe.SliceData(b))
	return unsafe.Add(p, -uintptr(p)&(page-1)), nil
}

// MunmapPtr leaves the memory to the garbage collector.
func MunmapPtr(unsafe.Pointer, uintptr) error { return nil }
