// Package engine is a RoCE v2 device in user space. It does what the kernel's driver rdma_rxe
// does: it takes work requests from rings in memory, executes the RC, UC and UD transports over
// a [netif.Network], and adds completions to rings.
//
//	send queue ──► requester ──► out ──► packets ──► netif, or the device itself
//	                   ▲          ▲                            │
//	               responses   answers                         │
//	                   │          │                            │
//	send CQ  ◄── requester   responder ──► recv CQ             │
//	                   ▲          ▲                            │
//	                   └── QP.handle ◄──── packets ◄───────────┘
//
// A [QP] connects a requester and a responder, each with its own fields and methods; out is the
// only way to the wire. The requester processes answers in completer.go, the responder sends them
// in response.go.
//
// # Concurrency
//
// Each QP has a lock, held while its requester and responder run. Packets for the network are sent
// under it, in batches, so that the packets of a QP stay in order; only acknowledgements may be
// sent later, with other QPs' or with the program's answer. Packets for a QP of the same device go
// to the device's work queue, and nothing calls one QP from another: there is no recursion. Several
// QPs are locked at a time only while a receiver sends acknowledgements, see receiver.answer, in the
// order of their numbers.
//
// Nothing polls. The work of a QP is done by the goroutine that causes it: by the caller of
// Doorbell, by a port's receiving goroutine, or by the device's worker goroutine when a timer
// expires. Each of them, having released the QP, processes the work queue, unless another goroutine
// does so already. A goroutine that has processed much of it leaves the rest to the worker.
//
// Locks are taken in this order: changes of GIDs, changes of groups, QP, SRQ, MW, MR, CQ, tables and
// queues of the device. An MR is locked for reading during an access, so that Destroy waits for
// accesses in progress; one of parts before the MR that has the part, which has none itself. A
// binding locks the old MR of a window after it has released the new one. A port's Close and Leave
// wait for its receiving goroutine, so they are called without the locks that this goroutine takes:
// all but the first two. Its Send is called with them, and does not wait.
//
// # Use
//
// Errors that the kernel reports as an errno are constants of package unix (EINVAL, ENOMEM,
// EOPNOTSUPP, ENODEV after Remove or Close), and EBUSY of package syscall. Every method is safe for
// concurrent use.
//
// Callbacks Notify and Event are called with locks of the engine held, from any goroutine: they
// must not block and must not call the engine. They may take a lock that is never held while the
// engine is called. They are not called after the object's Destroy has returned.
//
// A device model, which reads the queues of a virtual machine's driver, gives functions to its CQs,
// QPs and SRQs: Deliver, Refill, RefillSend, RefillRecv, Execute and Invalidate. They are called
// with the QP, and the SRQ, locked, and obey the same rules, but they may make and destroy address
// handles, and Execute and Invalidate also the regions of RegisterKey and RegisterParts. See feed.go.
//
// # Loss
//
// An RC requester goes back to the first packet that is not acknowledged when a NAK reports a
// gap, when an answer is missing, and when the timeout of the QP expires. As UDP sockets drop
// packets for which they have no room, it limits its packets in flight, see window, and asks for
// long READs in parts. It finds the loss of last packets early, see lossProbe.
//
// # Differences to rxe
//
// On the wire, peers see the behaviour of rxe, except that a READ may be requested in parts; that
// the answer to the rest of a READ begins with a FIRST or an ONLY; that acknowledgements of packets
// that arrive together are combined; that the packet after a gap is acknowledged, also if another
// gap follows; that a READ of nothing has no key; and that a packet may be repeated before the
// timeout. For programs:
//
//   - The window is adaptive, and 128 packets at most, which is rxe's constant one.
//   - A request that fails locally completes with its own status; rxe of Linux 6.12 reports a
//     flush.
//   - A request with a packet that is larger than what its link carries completes with a local
//     length error; the peer of a READ with such a response gets a remote operational error. In rxe
//     the status of the request is a local QP operation error, and a datagram that is longer than the
//     port's MTU completes as if it had been sent (IBA, C10-93.1.1).
//   - A move of a QP that is not in the state that the program states is refused.
//   - Completions with errors count as solicited, as InfiniBand requires.
//   - The holder of a memory window is limited to its bounds.
//   - A fenced READ or atomic that is sent again does not wait for itself, and an ACK within the
//     answer to a READ does not complete it.
//   - The time in which a responder has no receive request is not part of the timeout. It waits
//     for at least 1 ms then, rxe for a tick.
//   - A UC QP takes the message after one whose end is lost.
//   - Doorbell flushes receives of a QP in the error state. A receive of an SRQ that a message was
//     using is flushed with the QP.
//   - EventCommEst, EventQPReqErr, EventQPAccessErr and EventQPFatal are reported, the last three
//     when no receive completes with the error.
//   - Memory is not pinned. A region whose memory the program has unmapped is refused like one
//     that does not exist; rxe accesses the pages that were there.
//   - QP 1 is not a QP, unless QPInit.Num makes one: programs send and receive its datagrams with
//     SendMAD and OnMAD.
//   - Work requests of providers that are older than address handle numbers, and the kernel's
//     REG_MR, fail.
package engine
