// Package perf implements verbs perf, which measures latency and bandwidth of
// SEND, RDMA WRITE and READ, atomics and datagrams between two machines, as
// perftest's ib_*_lat and ib_*_bw do.
//
//	client                                      server
//	work: what to do ─────────────────────────► is it allowed, can it?
//	                ◄──────────────────── offer: port, token
//	dial QPs ════════ connection manager ═════► accept those with the token
//	start: where my memory is ◄───────────────► start
//	run ◄════════════ QPs ════════════════════► run, or stay passive
//	done: how many I sent ◄───────────────────► done
//	report: what I sent and received ◄────────► report
//
// The messages are lines of JSON on a control connection of package rsock. The
// client may request several runs on it, each with QPs of its own. Instead of
// any message a side may send the error for which it aborts. At the end of a run
// both sides check the data and compare how many messages were sent and received;
// a difference is an error, except that datagrams may be lost.
//
// # A run
//
//	       ┌──────────────── one goroutine ────────────────┐
//	post ──► QP 0, QP 1, ... ══► device ══► send CQ, recv CQ ──► take
//	       └── publishes counts: progress, watch ──────────┘
//	readMessages (from the peer), watch (connections, standstill), ctx
//	       └──► end the run's context, which every loop checks
//
// All QPs of a side share two CQs. Requests are prepared before the run;
// bandwidth tests post them in lists, and signal one in cq-mod. A run does not
// allocate.
//
// A SEND, or WRITE with immediate, consumes a receive of the peer. If none is
// posted, iWARP ends the connection, and other transports make the sender wait
// and retry, which is slow. So bandwidth tests use credits: the receiver posts
// its receives again and grants the sender credits for about half of them at a
// time, by an empty SEND. perftest's receivers write their counts into the
// sender's memory instead, but no event wakes the sender then.
//
// # Polling
//
// Without -e the goroutine polls, locked to its thread so that the scheduler
// does not move it between processors. The Go runtime preempts a goroutine that
// has run for 10 ms if others wait, and interrupts it with SIGURG to do so; those
// few microseconds appear in the highest percentiles of a thread that polls. The
// environment variable GODEBUG=asyncpreemptoff=1 disables the signals; the loops
// here can be preempted without them, as they call functions. A passive side,
// such as the server of RDMA WRITEs, does not poll. With -e both sides sleep in
// the kernel instead.
package perf
