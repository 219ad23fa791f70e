package unix

import "syscall"

// Errno is an error number.
type Errno = syscall.Errno

// The error numbers that this module uses.
const (
	E2BIG         = syscall.E2BIG
	EACCES        = syscall.EACCES
	EADDRINUSE    = syscall.EADDRINUSE
	EADDRNOTAVAIL = syscall.EADDRNOTAVAIL
	EAFNOSUPPORT  = syscall.EAFNOSUPPORT
	EAGAIN        = syscall.EAGAIN
	EBADF         = syscall.EBADF
	ECONNREFUSED  = syscall.ECONNREFUSED
	EFAULT        = syscall.EFAULT
	EHOSTUNREACH  = syscall.EHOSTUNREACH
	EINTR         = syscall.EINTR
	EINVAL        = syscall.EINVAL
	EIO           = syscall.EIO
	EMFILE        = syscall.EMFILE
	EMSGSIZE      = syscall.EMSGSIZE
	ENETUNREACH   = syscall.ENETUNREACH
	ENFILE        = syscall.ENFILE
	ENODEV        = syscall.ENODEV
	ENOENT        = syscall.ENOENT
	ENOMEM        = syscall.ENOMEM
	ENOTCONN      = syscall.ENOTCONN
	ENXIO         = syscall.ENXIO
	EOPNOTSUPP    = syscall.EOPNOTSUPP
	ETIMEDOUT     = syscall.ETIMEDOUT
	EWOULDBLOCK   = syscall.EWOULDBLOCK
)
