// Package cm is the RDMA connection manager: it finds the device and path to
// an address, makes connections and takes them, and says when they end. It
// speaks to /dev/infiniband/rdma_cm itself, as librdmacm does.
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
// [Dialer], [Listener] and [Endpoint] are for programs; [Channel] and [ID]
// under them are the kernel's own terms (rdma_cm(7)): an ID is a connection or
// a listener, and all that happens to it arrives as events on its channel.
// Between the two is [Loop], for programs that work event by event, as those on
// librdmacm do: it makes endpoints, too, and wakes no goroutine for another.
//
// Whatever waits takes a context. A wait that is cancelled, at any stage,
// takes back what it had begun: no ID, QP or file is left.
//
// A channel's events are read by one goroutine, which only sorts them: it
// waits in the runtime's netpoller, and no connection can hold up another. Who
// waits for an event does that in its place for some milliseconds, which saves
// waking a goroutine for each.
package cm
