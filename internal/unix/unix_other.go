//go:build !linux || nordma

package unix

import (
	"errors"
	"fmt"
	"runtime"
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
	EPOLLIN
	EPOLL_CLOEXEC
	EPOLL_CTL_ADD
	EPOLL_CTL_DEL
	F_DUPFD_CLOEXEC
	LINUX_CAPABILITY_VERSION_3
	LOCK_EX
	LOCK_NB
	MAP_ANONYMOUS
	MAP_HUGETLB
	MAP_HUGE_SHIFT
	MAP_PRIVATE
	MAP_SHARED
	POLLIN
	PROT_READ
	PROT_WRITE
	RLIMIT_MEMLOCK
	RLIM_INFINITY
	SIG_SETMASK
	SYS_IOCTL
	SYS_WRITE
)

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

func ByteSliceToString(b []byte) string                     { return "" }
func Capget(*CapUserHeader, *CapUserData) error             { return errLinux }
func Close(int) error                                       { return errLinux }
func Dup3(from, to, flags int) error                        { return errLinux }
func EpollCreate1(int) (int, error)                         { return -1, errLinux }
func EpollCtl(set, op, fd int, event *EpollEvent) error     { return errLinux }
func EpollWait(int, []EpollEvent, int) (int, error)         { return 0, errLinux }
func ErrnoName(Errno) string                                { return "" }
func Eventfd(initial uint, flags int) (int, error)          { return -1, errLinux }
func FcntlInt(fd uintptr, cmd, arg int) (int, error)        { return -1, errLinux }
func Flock(fd, how int) error                               { return errLinux }
func Getrlimit(int, *Rlimit) error                          { return errLinux }
func Gettid() int                                           { return 0 }
func NsecToTimespec(int64) Timespec                         { return Timespec{} }
func Open(string, int, uint32) (int, error)                 { return -1, errLinux }
func Ppoll([]PollFd, *Timespec, *Sigset_t) (int, error)     { return 0, errLinux }
func PthreadSigmask(how int, set, old *Sigset_t) error      { return errLinux }
func Read(int, []byte) (int, error)                         { return 0, errLinux }
func SetNonblock(int, bool) error                           { return errLinux }
func Uname(*Utsname) error                                  { return errLinux }
func Write(int, []byte) (int, error)                        { return 0, errLinux }
func Syscall(_, _, _, _ uintptr) (_, _ uintptr, _ Errno)    { return 0, 0, EOPNOTSUPP }
func RawSyscall(_, _, _, _ uintptr) (_, _ uintptr, _ Errno) { return 0, 0, EOPNOTSUPP }
func MunmapPtr(unsafe.Pointer, uintptr) error               { return errLinux }

func MmapPtr(int, int64, unsafe.Pointer, uintptr, int, int) (unsafe.Pointer, error) {
	return nil, errLinux
}
