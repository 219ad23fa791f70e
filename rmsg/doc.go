// Package rmsg sends and receives messages over RDMA, asynchronously: an event
// loop, sockets, callbacks, and buffers in registered memory. Programs that
// would rather wait have the same sockets with Send and Recv.
//
//	Post(buffer) ─► queue ─► SEND ═══════════════════► receive ─► ring ─► Message callback,
//	  Queued          ▲    up to Eager bytes, at once            ▲          or Recv
//	                  │                                          │           │
//	                  │      SEND "there are n bytes at ..." ═══►│ RDMA READ  ▼
//	  Sent, Failed ◄──┴───── SEND "read", "so many credits" ◄════╧══════════ Free(buffer)
//
// Messages of a socket arrive once, whole, and in order, whatever their sizes:
// from 0 bytes to what the peer is willing to take (Options.MaxMessage).
//
// # Who runs what
//
// Nothing happens but in [Loop.Dispatch], which handles all there is and
// returns, and [Loop.Run], which dispatches and sleeps by turns: callbacks run
// there, one at a time, and nowhere else. All methods of all types but Buffer may
// be called by any goroutine, and by callbacks, except that what takes a context
// waits for the loop and returns [ErrDispatching] to a callback, see [Callbacks].
// [Loop.FD] is one file for a program with a poll(2) loop of its own, however many
// sockets and devices there are.
//
//	loop, err := msg.NewLoop(rmsg.Options{Callbacks: msg.Callbacks{...}})
//	go loop.Run(ctx)                      // or: for { poll(loop.FD()); loop.Dispatch() }
//	socket, err := loop.Connect(addr, nil)
//
// # Back-pressure
//
// A peer may send Options.Credits messages before the program has freed some, so
// a slow receiver slows its sender, and nothing else: there is always a receive
// for what comes. A sender may queue Options.SendQueue messages; then Post gives
// [ErrWouldBlock] until Writable is called, and Send waits. What a socket takes
// up is bounded by that, see [Options]:
//
//	received  (Credits + 17) * Eager + max(Window, largest message)
//	sent      what the program allocates, SendQueue * Eager for Send
//
// with large messages rounded up to powers of two, and Window again of what is
// kept to be used again.
//
// # Memory
//
// A [Buffer] is the program's, or the socket's while it is Queued; its Status
// tells. Its memory is a socket's own, in a protection domain of its own, so that
// a peer reaches no memory of other sockets. What a peer can reach is the buffers
// above Eager of its own socket: it may read them at any time while the socket is
// up, also before they are posted. Buffers outlive their socket and loop until
// they are freed.
//
// # The end
//
// [Socket.Disconnect] lets both sides send what they have posted;
// [Socket.Close] does not; either way each buffer ends as Sent or Failed, and
// Disconnected is the last callback of a socket. Sent means that a message above
// Eager has been read by the peer, and that a smaller one is with the peer's
// device (RoCE) or with TCP (iWARP). A side that disconnects and ends with
// ErrClosed has heard the peer say goodbye to that, after all of its messages. A
// peer whose machine vanishes is noticed when something is sent to it.
//
// Sockets on a device that is removed end with [verbs.ErrDeviceRemoved], and messages
// that were received and not taken are dropped. The kernel removes a device when
// all programs have closed it: the loop does so a quarter of a second after its
// last socket there has ended and the program has freed the buffers of those
// sockets. The loop goes on, and opens the device when it is there again.
//
// # Wire format
//
// Numbers are in network byte order. The private data of both sides begins with
//
//	"VMSG"  version 1 byte  oldest version 1  length of what follows the 24 bytes 1  0
//	credits 4  bytes sent whole 4  bytes of the largest message 4  0 0 0 0
//	private data of the program
//
// A listener rejects who speaks something else, or no version in common, with
// private data of the same form. After that, each SEND is a frame:
//
//	type 1  flags 1  0 0  size 4  number of the message 4
//	messages granted 4  announced messages read 4  0 0 0 0
//	hello  1  the first frame of both sides, the dialing side's first
//	message 2  size bytes follow
//	announcement 3  address 8, key 4, 0 0 0 0 follow: to be read by RDMA READ
//	ack 4  nothing more
//	bye 5  no messages will follow; flag 1: the peer's bye was received
//
// Both counts run from the connection's start and wrap around. A peer that does
// not hold to this is disconnected, with [ErrProtocol].
//
// # ibmsg
//
// The C library ibmsg has this done before; function by function:
//
//	ibmsg                        here                          test
//	ibmsg_init_event_loop        NewLoop                       TestCallbacks
//	ibmsg_destroy_event_loop     Loop.Close                    TestLoopClose
//	ibmsg_dispatch_event_loop    Loop.Dispatch, Loop.Run       TestFD, TestCallbacks
//	ibmsg_event_loop.epollfd     Loop.FD                       TestFD
//	ibmsg_listen                 Loop.Listen                   TestCallbacks
//	ibmsg_connect                Loop.Connect, Loop.Dial       TestCallbacks, TestNobody
//	ibmsg_accept                 Request.Accept                TestCallbacks, TestPrivateData
//	(no accept: rejected)        Request.Reject                TestReject
//	ibmsg_disconnect             Socket.Disconnect             TestDisconnect
//	ibmsg_alloc_msg              Socket.Alloc                  TestBuffers
//	ibmsg_free_msg               Buffer.Free                   TestBuffers
//	ibmsg_post_send              Socket.Post                   TestCallbacks, TestWouldBlock
//	ibmsg_buffer.status          Buffer.Status                 TestBuffers
//	ibmsg_socket.status          Socket.State                  TestDisconnect
//	connection_request           Callbacks.Request             TestCallbacks, TestReject
//	connection_established       Callbacks.Established         TestCallbacks
//	message_received             Callbacks.Message             TestCallbacks
//
// ibmsg's messages end at 4096 bytes and go from the side that connected to the
// one that accepted, its receives are one for each socket, and its loop loses the
// reasons for which sockets end.
package rmsg
