// Package uverbs provides the RDMA verbs: devices, protection domains, memory regions,
// queue pairs and completion queues, without cgo and without rdma-core.
//
//	Devices ─► Open ─► Context ─┬─► PD ─┬─► MR   memory the device may touch
//	                            │       └─► QP   send queue + receive queue
//	                            ├─► CQ           completions of QPs
//	                            └─► CompChannel  events of CQs
//
//	control: Context, PD, ... ─► ioctl on /dev/infiniband/uverbsN
//	data:    QP.PostSend, QP.PostRecv, CQ.Poll ─► queues mapped from the driver
//
// rxe, siw and mlx5 are supported directly. Devices of other kernel drivers need a package that
// registers a driver, see package provider; without one, Open returns [verbs.ErrNoDriver].
//
// # Ownership
//
// Programs close the objects that they make, children first: Close fails with [verbs.ErrInUse], and
// lists them, while others depend on the receiver. Methods of a closed object return
// [verbs.ErrClosed]. An object keeps those that it was made from reachable. One that becomes
// unreachable without being closed is released after a garbage collection; a memory region only with
// its PD, since a peer may use it without a pointer. This is logged, see [Context.SetLogger], or with
// VERBS_DEBUG=leaks in the environment by slog.Default, with the stack of the call that made the object.
//
// # Concurrency
//
// All methods are safe for concurrent use. Posting and polling take a short lock for each queue. They
// do not allocate and, except for the doorbell of a send queue, make no system calls. Goroutines that
// wait hold at most one thread in the process.
//
// SingleThreaded in [CQOptions] and [QPOptions] disables the lock, most of the time of polling an
// empty queue. The object then belongs to one goroutine at a time, which may pass it on, for example
// through a channel; the race detector reports calls that are not ordered. QPs of siw use their locks
// until the peer's first message has arrived.
//
// # Errors
//
// Errors of the control path are a [*verbs.Error] that wraps the kernel's errno. They match
// errors.ErrUnsupported if the kernel's driver lacks a feature. Posting returns
// [verbs.ErrQueueFull] or a [*verbs.PostError]. A work request that fails completes with a [verbs.WC]
// whose Err wraps a [verbs.WCStatus].
//
// # Lost devices
//
// When a device is unplugged, deleted or fails, calls and waits fail with [verbs.ErrDeviceRemoved], and
// NextAsyncEvent returns [verbs.EventDeviceFatal]. Kernel drivers do not complete the requests that
// the device leaves behind, so a goroutine of the Context does: [CQ.Poll] returns what the device has
// completed, and then each other request with [verbs.WCFlushErr], those of an SRQ as receives of the
// first of its QPs. SingleThreaded queues are left alone: only their owner may touch them. The kernel's
// rxe empties the queues of QPs before it reports the loss: what was in them completes no more.
package uverbs
