// Package virtual has character device files that Go code in this process serves instead of the
// kernel. They have descriptors from [Base] up, which no file of the kernel has, and paths that
// begin with "virtual:". Package unix passes calls on such descriptors and paths to this package:
//
//	uverbs, provider, cm ──► unix ──┬──► the kernel                descriptors below Base
//	                                └──► virtual ──► [File]        descriptors from Base up
//
// A file that stands for /dev/infiniband/uverbsN or rdma_cm takes the kernel's commands, so that
// its callers need not know which of both they talk to. Addresses inside commands are of this
// process. Each [File] that commands make, such as a completion channel, is installed under a
// descriptor by [Install], and passed to the caller as the kernel passes a descriptor.
//
// Its files have no goroutines and no channels, so that they can be used in testing/synctest.
package virtual
