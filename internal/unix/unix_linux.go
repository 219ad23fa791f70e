//go:build !nordma

package unix

import (
	"syscall"
	"unsafe"

	linux "golang.org/x/sys/unix"
)

const (
	AF_INET                    = linux.AF_INET
	AF_INET6                   = linux.AF_INET6
	CAP_IPC_LOCK               = linux.CAP_IPC_LOCK
	EFD_CLOEXEC                = linux.EFD_CLOEXEC
	EFD_NONBLOCK               = linux.EFD_NONBLOCK
	EPOLLERR                   = linux.EPOLLERR
	EPOLLET                    = linux.EPOLLET
	EPOLLIN                    = linux.EPOLLIN
	EPOLL_CLOEXEC              = linux.EPOLL_CLOEXEC
	EPOLL_CTL_ADD              = linux.EPOLL_CTL_ADD
	EPOLL_CTL_DEL              = linux.EPOLL_CTL_DEL
	F_DUPFD_CLOEXEC            = linux.F_DUPFD_CLOEXEC
	LINUX_CAPABILITY_VERSION_3 = linux.LINUX_CAPABILITY_VERSION_3
	LOCK_EX                    = linux.LOCK_EX
	LOCK_NB                    = linux.LOCK_NB
	MAP_ANONYMOUS              = linux.MAP_ANONYMOUS
	MAP_HUGETLB                = linux.MAP_HUGETLB
	MAP_HUGE_SHIFT             = linux.MAP_HUGE_SHIFT
	MAP_PRIVATE                = linux.MAP_PRIVATE
	MAP_SHARED                 = linux.MAP_SHARED
	O_CLOEXEC                  = linux.O_CLOEXEC
	O_CREAT                    = linux.O_CREAT
	O_NOFOLLOW                 = linux.O_NOFOLLOW
	O_NONBLOCK                 = linux.O_NONBLOCK
	O_RDWR                     = linux.O_RDWR
	POLLIN                     = linux.POLLIN
	PROT_READ                  = linux.PROT_READ
	PROT_WRITE                 = linux.PROT_WRITE
	RLIMIT_MEMLOCK             = linux.RLIMIT_MEMLOCK
	RLIM_INFINITY              = linux.RLIM_INFINITY
	SIG_SETMASK                = linux.SIG_SETMASK
	SizeofSockaddrInet4        = linux.SizeofSockaddrInet4
	SizeofSockaddrInet6        = linux.SizeofSockaddrInet6
	SYS_IOCTL                  = linux.SYS_IOCTL
	SYS_WRITE                  = linux.SYS_WRITE
)

type (
	CapUserData   = linux.CapUserData
	CapUserHeader = linux.CapUserHeader
	EpollEvent    = linux.EpollEvent
	PollFd        = linux.PollFd
	Rlimit        = linux.Rlimit
	Sigset_t      = linux.Sigset_t
	Timespec      = linux.Timespec
	Utsname       = linux.Utsname
)

func ByteSliceToString(b []byte) string                  { return linux.ByteSliceToString(b) }
func Capget(hdr *CapUserHeader, data *CapUserData) error { return linux.Capget(hdr, data) }
func closeFile(fd int) error                             { return linux.Close(fd) }
func Dup3(from, to, flags int) error                     { return linux.Dup3(from, to, flags) }
func EpollCreate1(flags int) (int, error)                { return linux.EpollCreate1(flags) }
func EpollCtl(set, op, fd int, event *EpollEvent) error  { return linux.EpollCtl(set, op, fd, event) }
func EpollWait(set int, events []EpollEvent, msec int) (int, error) {
	return linux.EpollWait(set, events, msec)
}
func ErrnoName(e syscall.Errno) string                      { return linux.ErrnoName(e) }
func Eventfd(initial uint, flags int) (int, error)          { return linux.Eventfd(initial, flags) }
func fcntlInt(fd uintptr, cmd, arg int) (int, error)        { return linux.FcntlInt(fd, cmd, arg) }
func Flock(fd, how int) error                               { return linux.Flock(fd, how) }
func Getrlimit(resource int, limit *Rlimit) error           { return linux.Getrlimit(resource, limit) }
func Gettid() int                                           { return linux.Gettid() }
func NsecToTimespec(ns int64) Timespec                      { return linux.NsecToTimespec(ns) }
func open(path string, flags int, mode uint32) (int, error) { return linux.Open(path, flags, mode) }
func Ppoll(fds []PollFd, limit *Timespec, mask *Sigset_t) (int, error) {
	return linux.Ppoll(fds, limit, mask)
}
func PthreadSigmask(how int, set, old *Sigset_t) error { return linux.PthreadSigmask(how, set, old) }
func read(fd int, b []byte) (int, error)               { return linux.Read(fd, b) }
func SetNonblock(fd int, on bool) error                { return linux.SetNonblock(fd, on) }
func Uname(u *Utsname) error                           { return linux.Uname(u) }
func write(fd int, b []byte) (int, error)              { return linux.Write(fd, b) }

func MmapPtr(fd int, offset int64, addr unsafe.Pointer, length uintptr, prot, flags int) (unsafe.Pointer, error) {
	return linux.MmapPtr(fd, offset, addr, length, prot, flags)
}
func MunmapPtr(addr unsafe.Pointer, length uintptr) error { return linux.MunmapPtr(addr, length) }

func Syscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, errno syscall.Errno) {
	return linux.Syscall(trap, a1, a2, a3)
}
func RawSyscall(trap, a1, a2, a3 uintptr) (r1, r2 uintptr, errno syscall.Errno) {
	return linux.RawSyscall(trap, a1, a2, a3)
}

// SchedYield lets another thread run, without telling Go's scheduler.
func SchedYield() { linux.RawSyscall(linux.SYS_SCHED_YIELD, 0, 0, 0) }

func ioctl(fd int, request uint32, msg []byte) syscall.Errno {
	_, _, errno := linux.Syscall(linux.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(unsafe.Pointer(unsafe.SliceData(msg))))
	return errno
}
