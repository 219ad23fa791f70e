package unix

import "syscall"

// ENODATA is Linux's error number, which package syscall of other systems lacks.
const ENODATA = syscall.Errno(61)
