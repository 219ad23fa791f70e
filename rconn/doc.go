// Package rconn is RDMA connections with everything in them: a [Conn] holds
// protection domain, queue pair, completion queues and the channel of their
// events, knows the memory of both sides, and keeps the books of what is under
// way.
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
//	  Fence; Disconnect ───────────────────────►   AwaitDisconnect
//
//	  Post ─► books ─► QP            CQ ─► books ─┬► completions ─► Await, Poll
//	                                              ├► advertisements ─► AwaitAdvert
//	                                              └► Put, Get, Fence, Counter
//
// Requests are posted and completions awaited; both allocate nothing and cost
// little more than they do with packages cm and uverbs. [Conn.Put], [Conn.Get]
// and [Conn.Counter] do all at once, and wait.
//
// # Messages and advertisements
//
// Both are SENDs, and the receives that the other side has posted take them in
// order: there is no header that tells them apart, so peers need not use this
// package. Both sides must agree on the order, as they must on messages'
// lengths. Most agree that advertisements come first, for which [Options].Adverts
// posts receives before the peer can send. Each advertisement carries a checksum,
// so that none is made of another message; see [AdvertSize] for its form. What
// must be known at once can go with the private data, see [Conn.Announce].
//
// # Safety
//
// Bounds and rights of local and remote memory are checked before a request is
// posted, against what was allocated and advertised. A region named by a request
// under way cannot be destroyed. A wait that is cancelled takes nothing; what has
// completed is there for the next. If the peer dies everything under way
// completes with an error, and waiting for more fails.
//
// # For users of libiwarp
//
// libiwarp is a C library for the same job (linux-rdma mailing list, message
// 02623). These are the functions that its README names.
//
//	libiwarp                                here                               shown by
//	iw_ctx_alloc (remote address)           Dialer, Options                    TestConnect
//	iw_ctx_alloc (shared PD)                Options.PD, Alloc, Register        TestSharedPD
//	iw_connect                              Dial, Dialer.Dial                  TestConnect
//	iw_open                                 Listen (it binds too)              TestConnect
//	iw_listen                               Listener.Accept (gives a Request)  TestConnect
//	iw_accept                               Request.Accept                     TestConnect
//	private data, either way                Options.PrivateData                TestConnect
//	-                                       Request.Reject                     TestReject
//	iw_lmr_create                           Conn.Alloc                         TestRegions
//	iw_lmr_register                         Conn.Register                      TestRegions
//	iw_lmr_destroy                          LocalRegion.Destroy                TestRegions
//	iw_post_send_adv                        Conn.PostAdvert                    TestAdverts
//	iw_post_recv_adv                        Conn.PostRecvAdvert, Options       TestAdverts
//	iw_wait_recv_adv                        Conn.AwaitAdvert                   TestAdverts
//	iw_post_recv_sgl, iw_post_recv_lmr      Conn.PostRecv                      TestSGL, TestSend
//	iw_post_send_sgl, iw_post_send_lmr      Conn.PostSend                      TestSGL, TestSend
//	iw_post_write_sgl, iw_post_write_lmr    Conn.PostWrite                     TestSGL, TestWriteRead
//	iw_post_read_sgl, iw_post_read_lmr      Conn.PostRead                      TestSGL, TestWriteRead
//	awaiting completions of either CQ       Conn.Await                         TestAwait
//	active disconnection                    Conn.Disconnect                    TestDisconnect
//	awaiting the peer's                     Conn.AwaitDisconnect               TestDisconnect
//	freeing the context                     Conn.Close                         TestClose
package rconn
