package unix

import "syscall"

// Errno is an error number.
type Errno = syscall.Errno

// The error numbers that this module uses.
const (
	E2BIG           = syscall.E2BIG
	EACCES          = syscall.EACCES
	EADDRINUSE      = syscall.EADDRINUSE
	EADDRNOTAVAIL   = syscall.EADDRNOTAVAIL
	EAFNOSUPPORT    = syscall.EAFNOSUPPORT
	EAGAIN          = syscall.EAGAIN
	EBADF           = syscall.EBADF
	EBUSY           = syscall.EBUSY
	ECONNREFUSED    = syscall.ECONNREFUSED
	EFAULT          = syscall.EFAULT
	EHOSTUNREACH    = syscall.EHOSTUNREACH
	EINTR           = syscall.EINTR
	EINVAL          = syscall.EINVAL
	EIO             = syscall.EIO
	ENOLINK         = syscall.ENOLINK
	EISCONN         = syscall.EISCONN
	EMFILE          = syscall.EMFILE
	EMSGSIZE        = syscall.EMSGSIZE
	ENETUNREACH     = syscall.ENETUNREACH
	ENFILE          = syscall.ENFILE
	ENODATA         = Errno(61) // Linux's, which other systems lack
	ENODEV          = syscall.ENODEV
	ENOENT          = syscall.ENOENT
	ENOMEM          = syscall.ENOMEM
	ENOSPC          = syscall.ENOSPC
	ENOSYS          = syscall.ENOSYS
	ENOTCONN        = syscall.ENOTCONN
	ENOTTY          = syscall.ENOTTY
	ENXIO           = syscall.ENXIO
	EOPNOTSUPP      = syscall.EOPNOTSUPP
	EPERM           = syscall.EPERM
	EPROTONOSUPPORT = syscall.EPROTONOSUPPORT
	ETIMEDOUT       = syscall.ETIMEDOUT
	EWOULDBLOCK     = syscall.EWOULDBLOCK
)
