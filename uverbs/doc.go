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
// The package drives rxe, siw, mlx5 and erdma. For other devices, import a package that
// registers a driver, see package provider; without one, Open returns [verbs.ErrNoDriver].
//
// # Ownership
//
// Programs close the objects that they make, children first: while other objects depend on it,
// Close fails with [verbs.ErrInUse] and lists them. Methods of a closed object return
// [verbs.ErrClosed]. Made without CQs, a QP has a CQ and a completion channel of its own: one object to
// connect by hand, and one Close. An object keeps those that it was made from reachable. One that becomes
// unreachable without being closed is released after a garbage collection; an [MR], [MW] or [AH]
// only with its PD, and a [QP] that a peer can reach not at all, because they are used without a
// pointer. [Context.SetLogger] logs this; with VERBS_DEBUG=leaks in the environment slog.Default
// does, with the stack of the call that made the object.
//
// # Concurrency
//
// All methods are safe for concurrent use. Posting and polling take a short lock for each queue.
// They allocate nothing, and while a QP works their only system call is the doorbell of a send queue
// of rxe and siw. Goroutines that wait hold at most one thread in the process.
//
// SingleThreaded in [CQOptions] and [QPOptions] disables the lock, which is most of the cost of
// polling an empty queue. The object then belongs to one goroutine at a time, which may pass it on,
// for example through a channel; the race detector reports unordered calls. QPs of siw use their
// locks until the peer's first message has arrived.
//
// # Errors
//
// Errors of the control path are a [*verbs.Error] that wraps the kernel's errno. They match
// errors.ErrUnsupported if the kernel's driver lacks a feature. Posting returns
// [verbs.ErrQueueFull] or a [*verbs.PostError]. A work request that fails completes with a
// [verbs.WC] whose Err wraps a [verbs.WCStatus].
//
// # Lost devices
//
// When a device is unplugged, deleted or fails, calls and waits fail with [verbs.ErrDeviceRemoved],
// and NextAsyncEvent returns [verbs.EventDeviceFatal]. Kernel drivers leave the remaining requests
// incomplete, so a goroutine of the Context completes them: [CQ.Poll] returns the device's last
// completions, then each other request with [verbs.WCFlushErr], those of an SRQ as receives of the
// first of its QPs. SingleThreaded queues are left alone: only their owner may touch them. The
// kernel's rxe empties the queues of QPs before it reports the loss, and their requests never
// complete.
package uverbs
