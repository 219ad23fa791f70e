// Package hipobj has a server and a client of hipobj-rc-v2, the protocol of AMD's hipObject that
// moves S3 objects on RC queue pairs. The protocol is experimental by its authors' word: it may
// change incompatibly or be removed, and this package with it.
//
//	client                                                     server
//	  PREPARE  op, target, size, PSN, QP      ───────────────►   new PD, memory, QP; GET: fills the memory
//	           session, PSN, QP, PUT: memory  ◄───────────────   QP connected, PUT: receive posted
//	  QP connected, GET: receive posted
//	  READY    session, QP, memory            ───────────────►
//	           GET: WRITE with immediate      ◄═══════════════
//	           PUT: WRITE with immediate      ═══════════════►   QP destroyed, then the bytes are stored
//	           bytes, ETag, PUT: checksum     ◄───────────────
//	  or CANCEL
//
// Three POSTs to /.hipobj-rc/prepare, ready and cancel carry headers alone. [Handler] serves them
// over a [Store]. [Server] and its [Session]s are what is below it, for web frameworks that have no
// http.Handler. [Client] is the other side.
//
// # Threats
//
// A client has a queue pair to the server, and so packets that no HTTP server sees:
//
//   - Each session has a protection domain of its own: no client reaches another's memory. Memory of a
//     GET has no remote rights at all. The PSN is random.
//   - The server destroys the queue pair before anybody reads the bytes of a PUT: those that are checked
//     are those that are stored. In the error state rxe may still execute the packet at hand.
//   - [s3rdma.CheckPeer] refuses a GID that the HTTP request does not come from. Otherwise clients could
//     aim the server's packets at other machines.
//   - Sessions are counted against [Limits] until their memory is free, end by deadlines, and end before
//     the answer is sent. Of another account's session a client learns nothing.
//   - RoCE has neither encryption nor integrity, also if HTTP has TLS. The answer to a PUT has a checksum
//     of the bytes that were stored, which [Client] compares. GET has no checksum: compare the ETag if the
//     store's is a hash.
//
// iWARP is refused: it has no immediate data. Objects of 0 bytes, and transfers of more than
// [MaxSize], need HTTP.
package hipobj
