// Package rsock is net.Conn and net.Listener over RDMA. It speaks the protocol
// of librdmacm's rsockets, so a peer may be this package, a C program that
// calls rsocket(7), or any TCP program run with librspreload.so.
//
//	l, err := rsock.Listen("rdma", ":7471")           http.Serve(l, handler)
//	c, err := rsock.Dial("rdma", "10.9.0.1:7471")     tls.Client(c, config)
//	d := rsock.Dialer{}                               http.Transport{DialContext: d.DialContext}
//
// # Data
//
// Each side has a receive ring, in two halves, that the peer writes to by RDMA,
// and an array of two descriptors, also written by the peer, that says which
// parts of the peer's ring may be written to next:
//
//	writer                                               reader
//	                                       DATA n
//	Write ─► send ring ══════ RDMA WRITE ═════════► ┌────────┬────────┐ ─► Read
//	              n bytes     and n as its          │ half 0 │ half 1 │
//	              go to addr  immediate, or on      └────────┴────────┘
//	                ▲         iWARP in a SEND            receive ring
//	   ┌────────────┴────────────┐
//	   │ 0: addr, key, length    │ ◄══ RDMA WRITE ═══ a half that has been read
//	   │ 1: addr, key, length    │     and CREDIT      is offered again
//	   └─────────────────────────┘
//	     the peer's ring, as told
//
// Bytes are bounded by what has been offered. Messages are bounded by credits:
// each takes a receive request of the reader's, which has posted RecvQueue of
// them and says up to which number, counted modulo 2^16, messages may come.
// This package offers a receive again as soon as its message is seen, so credits
// bound bursts only; a reader that does not read holds the writer up when its
// ring is full. Ends are messages, too: SHUTDOWN says that no more data comes,
// DISCONNECT that none is read either.
//
// # Who drives
//
// There is no goroutine for a connection's data. Read and Write look at what has
// come in by themselves, each also for the other's sake: a Write that waits for
// the peer takes in what arrives, so two sides that both write do not wait for
// each other for as long as there is room. One of those who wait sleeps in the
// runtime's netpoller and wakes the others. A Conn in nobody's call does
// nothing: what the peer sent stays in the ring, and the peer, once that is
// full, waits.
//
// # Memory
//
// A connection has a receive ring of Options.ReadBuffer and a send ring of
// Options.WriteBuffer bytes, 256 KiB each unless locked memory is limited. The
// device writes and reads them at any time, so they are pinned and count against
// RLIMIT_MEMLOCK (ulimit -l), which processes with CAP_IPC_LOCK are exempt from;
// a page or two more are for the peer's descriptors and, on iWARP, messages.
// Within a limit rings are sized by what is left of it. A dial that finds no memory
// fails with ENOMEM. A listener that finds none rejects the connection and reports
// it, see [Listener.Accept]; the private data of the rejection says why, which this
// package's Dial reports, and C's rsockets ignore. The queues take some 250 KiB
// of the kernel's memory with rxe, 100 KiB with siw, which the limit does not
// count. Each connection has a protection domain of its own: a peer that
// guesses keys reaches no memory but what it was given.
package rsock
