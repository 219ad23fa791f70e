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
// Devices of rxe and siw work as they are. Those of another kernel driver need a
// package that registers a driver for it: see package provider. Without one Open
// returns [verbs.ErrNoDriver].
//
// # Ownership
//
// The maker of an object closes it, children first: Close of an object that others
// depend on fails with [verbs.ErrInUse] and names them. Close may be
// called again and by several goroutines; use after it gives [verbs.ErrClosed].
// Every object keeps what it was made from reachable, so nothing vanishes
// under a live one. Objects that become unreachable without being closed are
// released after a garbage collection; memory regions are only released together with
// their PD, since a peer may use one that no pointer leads to. [Context.SetLogger]
// reports such objects. With VERBS_DEBUG=leaks in the environment they are reported to
// slog.Default if no logger is set, with the stack of the call that made them.
//
// # Concurrency
//
// All methods may be called by several goroutines at once. Posting and polling
// take a short lock for each queue and neither allocate nor, except for
// the doorbell of a send queue, enter the kernel. Waiting costs no thread.
//
// With SingleThreaded in [CQOptions] or [QPOptions] there is no lock, which is most of the
// time of polling an empty queue. The object then belongs to one goroutine at a time: it may
// be handed over, as through a channel, and the goroutine that has it closes it. With -race,
// calls that are not in order are reported. QPs of siw use their locks until the peer's
// first message has come.
//
// # Errors
//
// Errors of the control path are [*verbs.Error] and wrap the kernel's errno; those
// that mean that the kernel's driver lacks a feature match
// errors.ErrUnsupported. Work requests that cannot be posted give
// [verbs.ErrQueueFull] or a [*verbs.PostError]; those that fail give a [verbs.WC] whose Err
// wraps a [verbs.WCStatus].
package uverbs
