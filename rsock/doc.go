// Package rsock provides net.Conn and net.Listener over RDMA. It speaks the protocol
// of librdmacm's rsockets, so a peer may be this package, a C program that
// calls rsocket(7), or a TCP program run with librspreload.so.
//
//	l, err := rsock.Listen("rdma", ":7471")           http.Serve(l, handler)
//	c, err := rsock.Dial("rdma", "10.9.0.1:7471")     tls.Client(c, config)
//	d := rsock.Dialer{}                               http.Transport{DialContext: d.DialContext}
//
// # Fallback to TCP
//
// Dialing and listening fail with an error that matches [verbs.ErrNoRDMA] if there is no
// device, device node, module or driver, or if no device leads to the address, as with
// 127.0.0.1. With a [Fallback] they use TCP then:
//
//	d := rsock.Dialer{Fallback: rsock.FallbackMissing}
//	lc := rsock.ListenConfig{Fallback: rsock.FallbackMissing}
//
// The Transport decides whether there is RDMA; its device may be one of package soft. Connections
// are a [*Conn] or a [*net.TCPConn]. A [Dialer]'s Timeout, LocalAddr, Resolver and KeepAlive apply
// to both.
//
//	                 client has RDMA                       client has none
//	server           None or Missing    Always             Missing or Always
//	RDMA only        RDMA               RDMA               refused
//	TCP only         refused (*)        TCP (*)            TCP
//	Always (both)    RDMA               RDMA               TCP
//
// On a machine with RDMA, a listener with FallbackMissing uses RDMA only, so nothing
// listens on 127.0.0.1; elsewhere it uses TCP only. (*) A machine without RDMA never answers
// the request: the dial fails at its Timeout, or tries TCP after Dialer.FallbackDelay.
//
// RoCE and InfiniBand have their own port space, so a listener with FallbackAlways can use the same
// port number for RDMA and TCP. iWARP shares TCP's ports: a port serves one of the two, and a
// client cannot know which. A TCP server that an iWARP device dials may not answer the handshake
// for 10 s, and if it sends first, the siw driver crashes the client's kernel (Linux 6.1 to 7.3).
// Therefore FallbackAlways uses only TCP on iWARP devices, in both Dialer and Listener: a listener
// at an iWARP device's address listens on TCP only, and a listener at all addresses, on a machine
// with an iWARP device, listens for RDMA at the addresses that the other devices have at that time.
// To use iWARP, set FallbackMissing or FallbackNone on both sides, and dial only RDMA servers.
//
// # Data
//
// Each side has a receive ring, in two halves, and an array of two descriptors. The peer writes
// data to the ring by RDMA, and to the descriptors which parts of its own ring to write to next:
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
//	     the peer's ring, as offered
//
// The offered space limits bytes, credits limit messages: each message consumes a receive
// of the reader, which has posted RecvQueue of them and grants credits up to a sequence
// number, modulo 2^16. This package posts a receive again when it has polled the message,
// so credits only limit bursts; a reader that does not read stops the writer when its
// ring is full. A direction ends with a message, too: SHUTDOWN means that the sender
// writes no more, DISCONNECT that it also reads no more.
//
// # Progress
//
// A Conn has no goroutine: it makes progress only while one of its methods runs. Both Read and
// Write process all completions: a Write that waits for the peer also handles incoming data, so two
// sides that both write can continue while their rings have room. One of the waiting calls sleeps
// in the runtime's netpoller and wakes the others. While no call runs, the peer's data stays in the
// ring, and the peer waits when the ring is full.
//
// # Memory
//
// A connection has a receive ring of Options.ReadBuffer and a send ring of Options.WriteBuffer
// bytes, 256 KiB each unless locked memory is limited. The device writes and reads them at any
// time, so they are pinned and count against RLIMIT_MEMLOCK (ulimit -l), from which processes with
// CAP_IPC_LOCK are exempt; a page or two more are for the peer's descriptors and, on iWARP,
// messages. With a limit, the sizes of rings and queues depend on its unused part. Without memory a
// dial fails with ENOMEM, and a listener rejects the connection and reports it, see
// [Listener.Accept]. The private data of the rejection carries the reason, which this package's
// Dial reports and C's rsockets ignore. With Options.IdleBuffer a connection begins with small rings,
// which grow when they are busy. The queues take some 125 KiB of kernel memory with rxe and
// 50 KiB with siw, outside the limit, and on adapters 68 KiB of locked memory, or as little as 20
// with a limit. Each connection has a protection domain of its own: a peer that guesses keys
// reaches only the memory offered to it.
//
// # Logging and statistics
//
// [Dialer] and [ListenConfig] take a Logger. [Conn.Stats] reports how much was sent and
// received, and why and how long Write waited; [Listener.Stats] counts connections.
//
// # Datagrams
//
// [ListenPacket] opens a [PacketConn], a net.PacketConn over unreliable datagrams, whose peer may
// be a datagram rsocket of C.
//
// For rsocket(7), docs/cm.md lists the counterparts of functions, docs/migrating.md of options.
package rsock
