// Package rmsg sends and receives messages over RDMA: with blocking calls, or asynchronously,
// with an event loop, callbacks, and buffers in registered memory.
//
// The package is experimental: its API and its wire protocol may change with any release.
//
//	Post(buffer) ─► queue ─► SEND ═══════════════════► receive ─► ring ─► Message callback,
//	  Queued          ▲    up to Eager bytes, at once            ▲          or Recv
//	                  │                                          │           │
//	                  │      SEND "there are n bytes at ..." ═══►│ RDMA READ  ▼
//	  Sent, Failed ◄──┴───── SEND "read", "so many credits" ◄════╧══════════ Free(buffer)
//
// Messages of a connection arrive whole, in order and once; of one that fails the last may be
// missing. They may have 0 bytes up to the peer's limit (Options.MaxMessage).
//
// # Programs
//
// [Dial] and [Listen] make connections with their own event loop, which a goroutine runs:
//
//	c, err := rmsg.Dial(ctx, "10.9.0.1:7471")
//	err = c.Send(ctx, []byte("hello"))
//	buffer, err := c.Recv(ctx)
//
// A program that serves many connections with callbacks creates a [Loop], sets it in [Dialer]
// and [ListenConfig], and runs it:
//
//	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{...}})
//	go loop.Run(ctx)
//	c, err := (&rmsg.Dialer{Loop: loop}).Connect(addr)
//
// [Loop.Run] calls [Loop.Dispatch] again and again. A program with its own epoll(7) or poll(2)
// loop calls Dispatch when [Loop.FD] is readable.
//
// Connections make progress, and callbacks run, only inside Dispatch, one callback at a time. Any
// goroutine may call methods of all types except Buffer. Callbacks may call methods without a
// context only: the others wait for the loop, so a callback would wait for itself, like a
// handler that calls Shutdown of its http.Server.
//
// # Back-pressure
//
// Each connection has Options.Credits receives for the messages of its peer, of Options.Eager bytes
// each. The peer may send again when the program has freed messages, so a slow receiver slows down
// only its sender, and each arriving frame finds a receive. A sender may queue Options.SendQueue
// messages; then Post returns [ErrWouldBlock] until Writable is called, and Send waits.
//
// # Memory
//
// With default [Options] a connection itself has at most 832 KiB of registered memory: (Credits +
// 14) * (Eager + 24) bytes for receives, and SendBuffer from the first message on. In addition
// each message above Eager has its own memory while the program holds it or it is in transit: in
// each direction at most the larger of Window and one message, and the buffers of Alloc. The loop
// caches the memory of freed buffers for at most a second, up to Options.Cache bytes for all its
// connections. The memory of queues is the kernel's, but on adapters locked memory of the process:
// 20 KiB for a connection, and 256 KiB to 1 MiB for a CQ that many share. [Conn.Stats] and
// [Loop.Stats] report the memory in use.
//
// The program owns a [Buffer], except while its Status is Queued: then the connection does. Its
// memory is in the protection domain of one connection. While the connection is up, the peer can
// read buffers of Alloc above Eager, even before they are posted. Buffers stay valid until they are
// freed, even after their connection and loop have been closed.
//
// # Disconnecting
//
// [Conn.Disconnect] first lets both sides send their posted messages; [Conn.Close] drops them. In
// both cases each posted buffer becomes Sent or Failed, and Disconnected is the last callback of a
// connection. Sent means that the peer has read a message above Eager, and that a smaller one has
// reached the peer's device (RoCE) or TCP (iWARP). If a side calls Disconnect and ends with
// [verbs.ErrClosed], the peer has received all of its messages. Only sending reveals that a peer's
// machine has failed, so the loop tests idle connections, see [Options].KeepAlive.
//
// Connections on a device that is removed end with [verbs.ErrDeviceRemoved]. The loop closes a
// device a quarter of a second after the last connection on it has ended and the program has freed
// its buffers, and opens it again when it is back.
//
// The wire format is in docs/protocols.md. A peer that violates the protocol is disconnected
// with [ErrProtocol].
//
// docs/migrating.md lists the counterparts of the C library ibmsg.
package rmsg
