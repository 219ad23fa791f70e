// Package cm makes RDMA connections with the kernel's connection manager, rdma_cm: it finds the
// device and path to an address, dials and accepts connections, and reports when they end.
//
//	client                                server
//	Dialer.Dial                           Listen
//	  resolve address ─► device             │
//	  resolve route                         │
//	  make QP, call Setup                   │
//	  connect ───── private data ─────► Listener.Accept ─► Request
//	  ◄──────────── private data ────────── Request.Accept (make QP, Setup)
//	Endpoint ◄═══════ work requests ══════► Endpoint
//	  Endpoint.Done: either side disconnected, died, or lost its device
//
// Most programs use [Dialer], [Listener] and [Endpoint], and [Datagrams] for messages without a
// connection. [Channel], [ID] and [Event] are the objects of librdmacm (rdma_cm(7)), for programs
// that handle one event after the other.
//
// A [Transport] owns the objects that connections share, such as open devices. Most programs need
// only [DefaultTransport], which closes objects after 250 ms without use.
//
// The calls of [Dialer], [Listener], [Request] and [Endpoint] that wait take a context. A cancelled
// call releases its ID, QP and files at any stage. A transport has one goroutine that passes on the
// kernel's events, and so has each channel. The page docs/architecture.md of the module lists the
// commands and events of a dial and of an end.
//
// # Logging
//
// [Options].Logger and [ListenConfig].Logger log at level Debug how connections begin and
// end, and repeated attempts; at level Warn rejected requests and failures that no call returns.
// The attributes are "device", "local", "remote", "err", and "elapsed" since the attempt began. Of
// requests that are turned away, "backlog" and "maxConns" are the limits (see [ListenConfig]), and
// "requests" is the number that one line stands for.
package cm
