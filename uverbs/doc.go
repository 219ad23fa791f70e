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
// # Drivers
//
// Devices of rxe, siw and mlx5 are supported directly. Devices of other kernel drivers need a
// package that registers a driver, see package provider. Without one, Open returns
// [verbs.ErrNoDriver].
//
// # Ownership
//
// Programs must close the objects that they make, children first. Close fails with
// [verbs.ErrInUse] while other objects depend on the receiver; the error lists them.
// Close may be called several times and by several goroutines. Methods of a closed object
// return [verbs.ErrClosed]. An object keeps the objects that it was made from reachable.
// Objects that become unreachable without being closed are released after a garbage
// collection. Memory regions are released only together with their PD, since a peer may
// use a region without a pointer to it. Such objects are logged, see [Context.SetLogger].
// With VERBS_DEBUG=leaks in the environment they are logged to slog.Default if no logger
// is set, with the stack of the call that made them.
//
// # Concurrency
//
// All methods are safe for concurrent use. Posting and polling take a short lock for each
// queue. They do not allocate and, except for the doorbell of a send queue, make no
// system calls. Goroutines that wait hold at most one thread in the process.
//
// SingleThreaded in [CQOptions] or [QPOptions] disables the lock, which takes most of the
// time of polling an empty queue. The object then belongs to one goroutine at a time,
// which may pass it to another, for example through a channel. The owner closes it. The
// race detector reports calls that are not ordered. QPs of siw use their locks until the
// peer's first message has arrived.
//
// # Errors
//
// Errors of the control path are a [*verbs.Error] that wraps the kernel's errno. They
// match errors.ErrUnsupported if the kernel's driver lacks a feature. Posting returns
// [verbs.ErrQueueFull] or a [*verbs.PostError] for work requests that cannot be posted. A
// work request that fails completes with a [verbs.WC] whose Err wraps a [verbs.WCStatus].
//
// # Lost devices
//
// A device may be unplugged, deleted or fail while it is open. Calls and waits then fail with
// [verbs.ErrDeviceRemoved], and NextAsyncEvent returns [verbs.EventDeviceFatal]. Kernel drivers do
// not complete the requests that the device leaves behind, so the Context does: a goroutine of it
// waits for that event. Posting fails with [verbs.ErrDeviceRemoved], also that of no
// requests, and [CQ.Poll] returns what the device has completed and then, with
// [verbs.WCFlushErr], each request that was posted and has not completed. Receives of an SRQ
// complete in any order, and as those of the first of its QPs. Queues that are
// SingleThreaded are left alone: only their owner may touch them, and a poll that looked whether the
// device is lost would cost what the option saves.
//
// Which requests have completed is known with mlx5. The kernel's rxe empties the queues of a QP
// before it reports the loss: what was in them completes no more. Receives of an
// SRQ do, and posting fails.
package uverbs
