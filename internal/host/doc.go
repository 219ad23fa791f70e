// Package host hides where devices come from: the kernel, or Go code in this process (package
// soft). No other package asks which of both serves a file or device.
//
//	uverbs, provider, mmap, cm ──► Open, Read, Write, Ioctl, Map ──┬──► system calls   descriptors below base
//	                               EventFile, Set: waiting         └──► File           descriptors from base up
//	uverbs, rdmadev, cm ─────────► Devices
//
// A [File] in place of /dev/infiniband/uverbsN or rdma_cm takes the kernel's commands. Addresses
// inside commands are of this process. [Install] gives each File that a command makes, such as a
// completion channel, a descriptor, which the command returns as the kernel returns one.
//
// Calls on the kernel's files are direct: concrete functions, which allocate nothing. On systems
// other than Linux they fail with an error that matches [verbs.ErrNoRDMA] and
// [errors.ErrUnsupported].
//
// Files of this process have no goroutines, and goroutines wait for them on channels, so that they
// work in testing/synctest.
package host
