// Package rconn provides RDMA connections that manage their own protection domain, queue
// pair, completion queues and memory regions: a [Conn] knows the memory of both sides and
// tracks all requests in flight.
//
//	initiator                                    responder
//	Dial ──────── private data, adverts ───────► Listen, Accept ─► Request
//	  Options.Setup: regions, receives             Adverts, PrivateData
//	     ◄─────── private data, adverts ────────   Accept (Options.Setup) or Reject
//	Conn                                         Conn
//	  Alloc, Register: LocalRegion ─┐              PostRecvAdvert
//	                                └ PostAdvert ► AwaitAdvert: RemoteRegion
//	  PostSend  ───── message ─────────────────►   PostRecv
//	  PostWrite ───── bytes ───────────────────►   (memory of a RemoteRegion)
//	  PostRead  ◄──── bytes ────────────────────
//	  Await(Sends)                                 Await(Recvs)
//	  AwaitDelivery; Disconnect ───────────────►   AwaitDisconnect
//
//	  Post ─► accounting ─► QP       CQ ─► accounting ─┬► completions ─► Await, Poll
//	                                                   ├► advertisements ─► AwaitAdvert
//	                                                   └► Put, Get, AwaitDelivery, Counter
//
// A server that shares memory, and a client that writes and reads it (examples/kv is a
// complete program):
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
// Posting and waiting for completions do not allocate, and cost little more than with
// packages cm and uverbs. [Conn.Put], [Conn.Get] and the methods of [Counter] post and
// wait in one call.
//
// # Requests
//
// There are methods for the common requests. [Conn.Post] posts any other, and
// [Conn.PostTo] any other on the peer's memory. Posting a request that the device does
// not support fails with an error that matches [errors.ErrUnsupported]:
//
//	request                            method                                  rxe         siw
//	SEND, WRITE, READ                  PostSend, PostWrite, PostRead           yes         yes
//	inline data                        PostSendInline, PostWriteInline, Post   yes         yes
//	SEND or WRITE with an immediate    PostSendImm, PostWriteImm               yes         no
//	SEND with invalidate               PostSendInv                             yes         yes
//	local invalidate                   PostInvalidate                          yes         yes
//	binding a memory window            AllocWindow, PostBind                   yes         no
//	fetch and add, compare and swap    PostFetchAdd, PostCompareSwap, Counter  yes         no
//	atomic write, flush                PostTo                                  Linux 6.2   no
//	READ with invalidate               PostTo                                  no          yes
//
// The keys that can be invalidated are those of windows on rxe and those of regions on
// siw. The receiver finds immediates and invalidated keys in the completion of its
// receive.
//
// # Messages and advertisements
//
// Both are SENDs and consume the receives of the other side in order. No header
// distinguishes them, so peers need not use this package; both sides must agree on their
// order, as they must on the lengths of messages. Usually advertisements come first: for
// these, [Options].Adverts posts receives before the peer can send. Each advertisement
// carries a checksum, so that no message is mistaken for one; see [AdvertSize] for its
// format. Advertisements that the peer needs at once can be sent in the private data, see
// [Conn.Announce].
//
// # Safety
//
// Bounds and access rights of local and remote memory are checked before a request is
// posted, against what was allocated and advertised. A region cannot be closed while a
// request in flight uses it. A cancelled wait consumes no completion; it is left for the
// next call. If the peer dies, all requests in flight complete with an error, and waiting
// for more fails.
//
// # The layers beneath
//
// [Conn.Endpoint] returns the connection of package cm; its documentation lists what a
// program may do with it. [NewRegion] accepts any region of package uverbs, and
// [Conn.Post] any request.
//
// # For users of libiwarp
//
// libiwarp is a C library for the same purpose (linux-rdma mailing list, message 02623).
// The table lists the names in its README.
//
//	libiwarp                              here                                shown by
//	iw_ctx_conn                           Conn; Listener, Request             TestConnect
//	iw_ctx_alloc                          Dialer, Options                     TestConnect
//	remote_addr, remote_port              Dialer.Dial                         TestConnect
//	qp_capacity                           Options.SendQueue, RecvQueue, SGEs  TestQueueFull, TestOptions
//	shared_pd                             Options.PD, SharePD, Prepare        TestSharedPD, TestPrepare
//	iw_connect                            Dial, Dialer.Dial                   TestConnect
//	iw_open, listen_addr, port            Listen (it binds too)               TestConnect
//	backlog                               ListenConfig.Backlog                TestListenConfig
//	iw_listen                             Listener.Accept                     TestConnect
//	iw_accept                             Request.Accept                      TestConnect
//	-                                     Request.Reject                      TestReject
//	priv_data                             Options.PrivateData                 TestConnect
//	iw_lmr                                LocalRegion                         TestRegions
//	iw_lmr_create                         Conn.Alloc, Alloc                   TestRegions
//	iw_lmr_register                       Conn.Register, Register, NewRegion  TestRegions, TestEndpoint
//	access_flags                          LocalWrite, RemoteRead and others   TestBounds
//	iw_lmr_destroy                        LocalRegion.Close                   TestRegions
//	free_buf_flag                         - (see below)                       TestRegions
//	iw_rmr                                RemoteRegion, Target                TestBounds
//	iw_post_send_adv                      Conn.PostAdvert, Conn.Announce      TestAdverts
//	iw_post_recv_adv                      Conn.PostRecvAdvert, Options        TestAdverts
//	iw_wait_recv_adv                      Conn.AwaitAdvert, Conn.TryAdvert    TestAdverts
//	iw_sgl                                Span (several are a list)           TestSGL
//	post_recv_sgl, post_recv_lmr          Conn.PostRecv                       TestSGL, TestSend
//	post_send_sgl, post_send_lmr          Conn.PostSend                       TestSGL, TestSend
//	post_write_sgl, post_write_lmr        Conn.PostWrite                      TestSGL, TestWriteRead
//	post_read_sgl, post_read_lmr          Conn.PostRead                       TestSGL, TestWriteRead
//	send_flags                            verbs.SendFlags; PostSendInline     TestUnsignaled, TestPostMethods
//	await_completions                     Conn.Await, Conn.Poll               TestAwait
//	cq_type, IW_SCQ, IW_RCQ               Direction: Sends, Recvs             TestAwait
//	num_wcs, wc_list                      verbs.WC (a slice of them)          TestAwait
//	iw_disconnect                         Conn.Disconnect                     TestDisconnect
//	iw_await_disconnect                   Conn.AwaitDisconnect                TestDisconnect
//	-                                     Conn.Close                          TestClose
//	libibverbs, librdmacm                 Conn.Post, Conn.Endpoint            TestPost, TestEndpoint
//
// Differences:
//
//   - The peer must use this package, or know its format of advertisements
//     ([AdvertSize]). A program that uses libiwarp cannot be the peer.
//   - Every call that waits takes a context, and loses nothing when it is cancelled.
//     Several goroutines may wait at once.
//   - Functions return Go errors with a reason, not codes. The error of a full queue
//     matches [verbs.ErrQueueFull].
//   - The one number qp_capacity is four options here, with defaults. They also count
//     completions that were not taken, so no CQ overflows.
//   - LocalRegion.Close frees the memory that Alloc made, and not memory that the caller
//     registered: there is no free_buf_flag. It fails while requests use the region.
//   - A connection has its own protection domain by default.
//   - An advertisement can be of a part of a region, has a tag, and is checked. Requests
//     outside the advertised memory are refused before they are posted.
//   - Inline data needs no region, and has methods of its own instead of a flag.
//   - After AwaitDisconnect a Conn must be closed, which also frees the regions it made.
package rconn
