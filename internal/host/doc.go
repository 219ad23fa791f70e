// Package host is the seam for where devices come from: the kernel, or Go code in this process
// (package soft). No other package asks which of both serves a file or device.
//
//	uverbs, provider, mmap, cm ──► Open, Read, Write, Ioctl, Map ──┬──► system calls   descriptors below base
//	                               EventFile, Set: waiting         └──► File           descriptors from base up
//	uverbs, rdmadev, cm ─────────► Devices
//
// A [File] that stands for /dev/infiniband/uverbsN or rdma_cm takes the kernel's commands, so that
// its callers need not know which of both they talk to. Addresses inside commands are of this
// process. Each File that commands make, such as a completion channel, is installed under a
// descriptor by [Install], and passed to the caller as the kernel passes a descriptor.
//
// Calls on the kernel's files are direct: concrete functions, which allocate nothing. On systems
// other than Linux they fail with an error that matches [verbs.ErrNoRDMA] and
// [errors.ErrUnsupported].
//
// Files of this process have no goroutines, and who waits for them waits for a channel, so that
// they can be used in testing/synctest.
package host
