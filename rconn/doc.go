// Package rconn provides RDMA connections with memory regions: a [Conn] manages its protection
// domain, queue pair, completion queues and regions, knows the memory that the peer has
// advertised, and tracks all requests in flight.
//
// The package is experimental: its API and its wire protocol may change with any release.
//
//	initiator                                    responder
//	Dial ──────── private data, adverts ───────► Listen, Accept ─► Request
//	  Options.Setup: regions, receives             Adverts, PrivateData
//	     ◄─────── private data, adverts ────────   Accept (Options.Setup) or Reject
//	  Alloc, Register: LocalRegion ─┐              PostRecvAdvert
//	            Post(Advert(region)) ────────────► AwaitAdvert: RemoteRegion
//	  Post(Send(span)) ─── message ────────────►   PostRecv
//	  Post(Write(to, span)) ── bytes ──────────►   (memory of a RemoteRegion)
//	  Post(Read(from, span)) ◄── bytes ─────────
//	  Await(Sends), those that are signaled        Await(Recvs)
//	  AwaitDelivery; Disconnect ───────────────►   AwaitDisconnect
//
// A server shares memory, and a client writes and reads it (examples/kv is a complete program):
//
//	l, err := rconn.Listen(ctx, "10.9.0.1:7471")
//	request, err := l.Accept(ctx)
//	conn, err := request.Accept(ctx, rconn.Options{Setup: func(c *rconn.Conn) error {
//		region, err := c.Alloc(4096, rconn.ReadWrite)
//		if err != nil {
//			return err
//		}
//		return c.Announce(0, region.All())
//	}})
//	err = conn.AwaitDisconnect(ctx)
//
//	conn, err := rconn.Dial(ctx, "10.9.0.1:7471")
//	board := conn.Adverts()[0] // what the server announced
//	err = conn.Put(ctx, board.At(100), []byte("hello"))
//	err = conn.Get(ctx, buffer, board.At(100))
//
// # Requests
//
// A request of [Conn.Post] has a completion, which Await waits for, if it is signaled, or fails:
//
//	err = conn.Post(rconn.Write(board, span).With(7, verbs.SendSignaled))
//	err = conn.Await(ctx, rconn.Sends, wcs[:1])
//
// A request that the device does not support fails with an error that matches
// [errors.ErrUnsupported]:
//
//	request                            made by                               rxe        siw
//	SEND, WRITE, READ                  Send, Write, Read                     yes        yes
//	inline data                        SendInline, WriteInline               yes        yes
//	SEND or WRITE with an immediate    SendImm, WriteImm                     yes        no
//	SEND with invalidate               SendInv                               yes        yes
//	local invalidate                   Invalidate                            yes        yes
//	binding a memory window            AllocWindow, Bind                     yes        no
//	fetch and add, compare and swap    FetchAdd, CompareSwap, Counter        yes        no
//	atomic write, flush                Op                                    Linux 6.2  no
//	READ with invalidate               Op                                    no         yes
//
// On rxe the keys of windows can be invalidated, on siw the keys of regions. The receiver finds
// immediates and invalidated keys in the completion of its receive. Posting and waiting do not
// allocate.
//
// Posting first checks bounds and access rights, of local memory against its region and of remote
// memory against its advertisement. A region cannot be closed while a request in flight uses it. A
// cancelled wait consumes no completion. If the peer dies, all requests in flight complete with an
// error, and waiting for more fails.
//
// # Messages and advertisements
//
// Both are SENDs without a header and consume the receives of the other side in order. So any RDMA
// program can be the peer, but both sides must agree on the order, and on the lengths of messages.
// Usually advertisements come first: for these, [Options].Adverts posts receives before the peer
// can send. [Conn.Announce] sends those that the peer needs at once in the private data.
//
// By default each connection has a protection domain of its own. Completions that the program has
// not taken count as queued, so no CQ overflows. Close a connection after AwaitDisconnect: that
// frees its regions. docs/migrating.md lists the counterparts of the C library libiwarp.
package rconn
