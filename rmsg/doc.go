// Package rmsg sends and receives messages over RDMA asynchronously, with an event loop,
// sockets, callbacks, and buffers in registered memory. Programs that prefer blocking
// calls use Send and Recv of the same sockets.
//
//	Post(buffer) ─► queue ─► SEND ═══════════════════► receive ─► ring ─► Message callback,
//	  Queued          ▲    up to Eager bytes, at once            ▲          or Recv
//	                  │                                          │           │
//	                  │      SEND "there are n bytes at ..." ═══►│ RDMA READ  ▼
//	  Sent, Failed ◄──┴───── SEND "read", "so many credits" ◄════╧══════════ Free(buffer)
//
// Messages of a socket arrive exactly once, whole and in order. They may have 0 bytes up
// to the peer's limit (Options.MaxMessage).
//
// # Simple programs
//
// [Dial] and [Listen] make sockets with their own event loop, which a goroutine runs:
//
//	s, err := rmsg.Dial(ctx, "10.9.0.1:7471")
//	err = s.Send(ctx, []byte("hello"))
//	buffer, err := s.Recv(ctx)
//
// # Event loops
//
// A program that serves many sockets with callbacks creates a [Loop], sets it in [Dialer]
// and [ListenConfig], and runs it:
//
//	loop, err := rmsg.NewLoop(rmsg.Options{Callbacks: rmsg.Callbacks{...}})
//	go loop.Run(ctx)
//	socket, err := (&rmsg.Dialer{Loop: loop}).Connect(addr)
//
// [Loop.Run] waits for events and handles them until it is stopped; [Loop.DispatchWait]
// does so once; [Loop.Dispatch] handles pending events and does not wait. [Loop.FD]
// returns one file descriptor for all sockets and devices, for programs with their own
// epoll(7) or poll(2) loop.
//
// # Concurrency
//
// Sockets make progress, and callbacks run, only inside Dispatch, DispatchWait and Run, one
// callback at a time. Methods of all types except Buffer may be called by any goroutine,
// and by callbacks. But methods that take a context wait for the loop, so they return
// [ErrDispatching] in a callback, see [Callbacks].
//
// # Back-pressure
//
// Each socket has Options.Credits receives for the messages of its peer, of
// Options.Eager bytes each. The peer may send again when the program has freed messages,
// so a slow receiver slows down only its sender: there is always a receive for an
// arriving frame. A sender may queue Options.SendQueue messages; then Post returns
// [ErrWouldBlock] until Writable is called, and Send waits.
//
// # Memory
//
// With default [Options] a socket itself has at most 432 KiB of registered memory:
//
//	receives   (Credits + 10) * (Eager + 24)              337 KiB
//	sending    SendBuffer, from the first message on      64 KiB
//
// In addition each message above Eager has its own registered memory: those that the
// program holds, and those in transit:
//
//	received   the larger of Window and one message                        1 MiB
//	sent       the larger of Window and one message, for Send              1 MiB
//
// and the buffers of Alloc that SendBuffer has no room for. When such a buffer is freed,
// its memory is cached for at most a second, up to Options.Cache bytes (4 MiB) for all
// sockets of the loop together, and then returned to the system. The memory of queue pairs
// and completion queues is not included. It is the kernel's, but on adapters locked memory
// of the process: 20 KiB for a socket, and 256 KiB to 1 MiB for a CQ that many share.
// [Socket.Stats] and [Loop.Stats] report the memory in use.
//
// A [Buffer] is owned by the program, or by the socket while its Status is Queued.
// Registered memory belongs to one socket and its own protection domain, so a peer cannot
// access the memory of other sockets. On its own socket, a peer can read the buffers that
// Alloc returned for messages above Eager at any time while the socket is up, even before
// they are posted. Buffers stay valid until they are freed, even after their socket and
// loop have been closed.
//
// # Disconnecting
//
// [Socket.Disconnect] lets both sides send what they have posted; [Socket.Close] does
// not. In both cases each posted buffer becomes Sent or Failed, and Disconnected is the
// last callback of a socket. Sent means that the peer has read a message above Eager, and
// that a smaller one has reached the peer's device (RoCE) or TCP (iWARP). If a side calls
// Disconnect and ends with [verbs.ErrClosed], the peer has received all of its messages.
// The failure of a peer's machine is noticed when something is sent to it.
//
// Sockets on a device that is removed end with [verbs.ErrDeviceRemoved]. The kernel removes a
// device when all programs have closed it. The loop closes it a quarter of a second after
// the last socket on it has ended and the program has freed the buffers that it holds of
// those sockets; messages that it has not taken do not count. The loop continues, and
// opens the device again when it is back.
//
// # Wire format
//
// Numbers are in network byte order. The private data of both sides starts with
//
//	"VMSG"  version 1 byte (3)  oldest version 1 (3)  length of what follows the 20 bytes 1  0
//	credits 4  largest message sent at once 4  largest message 4
//	private data of the program
//
// A listener rejects a peer that sends something else, or has no version in common, with
// private data in the same format. After that, each SEND is a frame:
//
//	type 1  flags 1  0 0  size 4  number of the message 4
//	messages granted 4  announced messages read 4  0 0 0 0
//	hello  1  the first frame of both sides, the dialing side's first
//	message 2  size bytes follow
//	announcement 3  address 8, key 4, 0 0 0 0 follow: to be read by RDMA READ
//	ack 4  nothing more
//	bye 5  no messages will follow; flag 1: the peer's bye was received
//
// Both counts start with the connection and wrap around. A peer that violates the
// protocol is disconnected with [ErrProtocol].
//
// # For users of ibmsg
//
// ibmsg is a C library for the same purpose (github.com/joerns/ibmsg). The tables list
// its names, their counterparts, and the tests that use them.
//
//	ibmsg_init_event_loop             NewLoop                            TestCallbacks
//	ibmsg_destroy_event_loop          Loop.Close                         TestLoopClose
//	ibmsg_dispatch_event_loop         Loop.DispatchWait                  TestDispatchWait
//	ibmsg_listen                      Listen, ListenConfig.Listen        TestCallbacks, TestDialListen
//	ibmsg_listen (max_connections)    ListenConfig.Backlog               TestReject
//	ibmsg_connect                     Dial, Dialer.Connect               TestCallbacks, TestNobody
//	ibmsg_accept                      Request.Accept                     TestCallbacks, TestPrivateData
//	ibmsg_disconnect                  Socket.Disconnect                  TestDisconnect
//	ibmsg_disconnect (listening)      Listener.Close                     TestReject
//	ibmsg_alloc_msg                   Socket.Alloc                       TestBuffers
//	ibmsg_free_msg                    Buffer.Free                        TestBuffers
//	ibmsg_post_send                   Socket.Post                        TestCallbacks, TestWouldBlock
//	ibmsg_event_loop                  Loop                               TestCallbacks
//	  event_channel                   -                                  -
//	  epollfd                         Loop.FD                            TestFD, TestNestedEpoll
//	  connection_request              Callbacks.Request                  TestCallbacks, TestReject
//	  connection_established          Callbacks.Established              TestCallbacks
//	  message_received                Callbacks.Message                  TestCallbacks
//	  event_description               -                                  -
//	ibmsg_connection_request          Request                            TestReject
//	  cmid                            Request.RemoteAddr                 TestPrivateData
//	  status                          (Request.Accept fails)             TestReject
//	IBMSG_UNDECIDED, IBMSG_ACCEPTED   (Request.Accept fails)             TestReject
//	ibmsg_socket                      Socket                             TestCallbacks
//	  cmid                            Socket.Endpoint                    TestEndpoint
//	  status                          Socket.State                       TestDisconnect
//	  socket_type                     Listener, Socket                   TestCallbacks
//	  recv_buffer                     Options.Credits                    TestCredits
//	  send_event_description          -                                  -
//	  recv_event_description          -                                  -
//	IBMSG_UNCONNECTED                 Connecting                         TestCallbacks
//	IBMSG_ADDRESS_RESOLVED            Connecting                         TestCallbacks
//	IBMSG_ROUTE_RESOLVED              Connecting                         TestCallbacks
//	IBMSG_CONNECTED                   Established                        TestDispatchWait
//	IBMSG_DISCONNECTING               Disconnecting                      TestDisconnect
//	IBMSG_ERROR                       Disconnected, Socket.Err           TestNobody
//	IBMSG_LISTEN_SOCKET               Listener                           TestCallbacks
//	IBMSG_RECV_SOCKET                 Socket (both directions)           TestSizes
//	IBMSG_SEND_SOCKET                 Socket (both directions)           TestSizes
//	ibmsg_buffer                      Buffer                             TestBuffers
//	  mr                              -                                  -
//	  data                            Buffer.Bytes                       TestBuffers
//	  size                            Buffer.Cap, Buffer.SetLen          TestBuffers
//	  status                          Buffer.Status                      TestBuffers
//	IBMSG_WAITING                     Free, Queued                       TestCallbacks
//	IBMSG_SENT                        Sent, Failed                       TestCallbacks
//	IBMSG_RECEIVED                    Received                           TestBuffers
//	IBMSG_MAX_MSGSIZE                 Options.MaxMessage, ErrTooLarge    TestSizes, TestBuffers
//	IBMSG_CMA                         -                                  -
//	IBMSG_SEND_COMPLETION             Callbacks.Sent                     TestCallbacks
//	IBMSG_RECV_COMPLETION             Callbacks.Message                  TestCallbacks
//
// Its error codes correspond to errors of type [verbs.Error] here, which match errno
// values:
//
//	IBMSG_OK                          (nil)                              TestCallbacks
//	IBMSG_FCNTL_FAILED                NewLoop                            -
//	IBMSG_GETADDRINFO_FAILED          Dialer.Dial, ListenConfig.Listen   TestNobody
//	IBMSG_CREATE_ID_FAILED            Socket.Err                         -
//	IBMSG_BIND_FAILED                 ListenConfig.Listen                TestDialListen
//	IBMSG_LISTEN_FAILED               ListenConfig.Listen                TestDialListen
//	IBMSG_ADDRESS_RESOLUTION_FAILED   Socket.Err                         TestNobody
//	IBMSG_FETCH_EVENT_FAILED          Socket.Err                         -
//	IBMSG_ACK_EVENT_FAILED            -                                  -
//	IBMSG_ALLOC_FAILED                Socket.Alloc                       TestBuffers
//	IBMSG_MEMORY_REGISTRATION_FAILED  Socket.Alloc, Socket.Err           -
//	IBMSG_POST_SEND_FAILED            Socket.Post                        TestBuffers, TestWouldBlock
//	IBMSG_DISCONNECT_FAILED           Socket.Err                         TestLinger
//	IBMSG_FREE_BUFFER_FAILED          Buffer.Free, ErrBuffer             TestWouldBlock
//	IBMSG_CREATE_QP_FAILED            Socket.Err                         -
//	IBMSG_ACCEPT_FAILED               Request.Accept, Socket.Err         TestReject
//	IBMSG_EPOLL_FAILED                NewLoop                            -
//	IBMSG_EPOLL_ADD_FD_FAILED         Socket.Err                         -
//	IBMSG_EPOLL_WAIT_FAILED           Loop.DispatchWait                  TestLoopClose
//
// Differences: ibmsg_dispatch_event_loop waits for an event, as DispatchWait does and
// Dispatch does not. Without a callback for requests ibmsg rejects them, and without one
// for messages it frees them; here they wait for [Listener.Accept] and [Socket.Recv], and
// messages that are not received block their sender. Messages of ibmsg have at most 4096
// bytes and are sent from the connecting to the accepting side; here both sides send.
// ibmsg has one receive for each socket and no flow control. Here a socket reports its
// error. The wire formats differ: a program that uses ibmsg cannot be the peer.
package rmsg
