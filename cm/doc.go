// Package cm is the RDMA connection manager: it finds the device and path to an address,
// makes and accepts connections, and reports their end. It uses /dev/infiniband/rdma_cm
// directly, as librdmacm does.
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
// [Dialer], [Listener] and [Endpoint] are for most programs; [Channel] and [ID] are the
// kernel's own terms (rdma_cm(7)): an ID is a connection or a listener, and all that
// happens to it arrives as events on its channel. Between the two is [Loop], for programs
// that handle event by event, as those on librdmacm do. It makes endpoints too. A program
// with an event loop of its own waits for [Loop.FD] to be readable and calls
// [Loop.TryNext].
//
// What connections share, such as open devices, belongs to a [Transport]. Most programs need
// none but [DefaultTransport], which closes what has been unused for a moment.
//
// Every call that waits takes a context. A call that is cancelled, at any stage, leaves no
// ID, QP or file.
//
// A channel's events are read by one goroutine, which only sorts them: it waits in the
// runtime's netpoller, and no connection can hold up another. A goroutine that waits for
// an event reads them itself for some milliseconds, which saves waking it for each.
//
// # Logging
//
// [Options].Logger and [ListenConfig].Logger log with package log/slog: at level Debug how
// connections are made and end, and attempts that are repeated; at level Warn requests that
// were rejected and failures that no call returns. Attributes are "device", "local",
// "remote", "err", and "elapsed", the time since the connection began to be made.
// [Listener.Stats] has figures.
package cm
