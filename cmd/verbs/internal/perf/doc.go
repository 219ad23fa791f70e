// Package perf is verbs perf: it measures latency and bandwidth of SEND, RDMA
// WRITE and READ, atomics and datagrams between two machines, as perftest's
// ib_*_lat and ib_*_bw do.
//
//	client                                      server
//	work: what to do ─────────────────────────► is it allowed, can it?
//	                ◄──────────────────── offer: port, token
//	dial QPs ════════ connection manager ═════► accept those with the token
//	start: where my memory is ◄───────────────► start
//	run ◄════════════ QPs ════════════════════► run, or lie still
//	done: how many I sent ◄───────────────────► done
//	report: what I sent and received ◄────────► report
//
// The messages are JSON, a line each, over a control connection of package
// rsock; the client may ask for more runs on it, and each has QPs of its own.
// Instead of any message a side may send why it gives up. When a run ends both
// compare how many messages were sent and received, and that the data is right;
// it is an error if not, except that datagrams may be lost.
//
// # A run
//
//	       ┌──────────────── one goroutine ────────────────┐
//	post ──► QP 0, QP 1, ... ══► device ══► send CQ, recv CQ ──► take
//	       └── publishes counts: progress, watch ──────────┘
//	hear (the peer's messages), watch (connections, standstill), ctx
//	       └──► end the run's context, whose end every loop sees
//
// All QPs of a side share two CQs. Requests are made before the run; bandwidth
// tests post them in lists, and have one in cq-mod signaled. Nothing is
// allocated on the way.
//
// A SEND, or WRITE with immediate, takes a receive of the peer's. On iWARP one
// that finds none ends the connection, and elsewhere the sender waits and
// tries again, which takes long. So bandwidth tests have credits: the receiver
// offers its receives again and credits the sender, by an empty SEND, with about
// half of them at a time. perftest's receivers write their counts into the
// sender's memory, but no event wakes the sender then.
//
// # Polling
//
// Without -e the goroutine polls, locked to its thread so that the scheduler
// does not move it between processors. The Go runtime takes a goroutine that
// ran for 10 ms off its processor if others wait, and interrupts it with SIGURG
// for that; a thread that polls has those few microseconds in its highest
// percentiles. The environment variable GODEBUG=asyncpreemptoff=1 turns the
// signals off, and the loops here, which call functions, can be preempted
// without. A side that only lies still, such as the server of RDMA WRITEs,
// does not poll. With -e both sides sleep in the kernel instead.
package perf
