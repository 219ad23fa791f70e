// Package ibcm is InfiniBand's connection manager in user space: the state machine of the
// kernel's ib_cm (drivers/infiniband/core/cm.c). It makes and ends connections with peers by
// management datagrams (MADs) between their QPs 1.
//
//	active                             passive
//	[ID.Connect]     ─── REQ ───►      the handler of [Device.Listen] gets an ID
//	                 ◄── REP ────      [ID.Accept], or [ID.Reject] with REJ
//	[ID.Establish]   ─── RTU ───►
//	[ID.Disconnect]  ─── DREQ ──►
//	                 ◄── DREP ───      [ID.Disconnect]
//	[ID.Resolve]     ─ SIDR_REQ ►      the handler gets an ID
//	                 ◄ SIDR_REP ─      [ID.Answer]
//
// REQ, REP, DREQ and SIDR_REQ are sent again until they are answered. A side that needs more
// time announces that with an MRA ([ID.Delay]) when it gets a message again. All timers are of
// package time, and there are no goroutines besides theirs.
//
// Compared to TCP, REQ is the SYN, REP the SYN and ACK, RTU the ACK, DREQ and DREP the FINs of both
// sides at once, and REJ the RST. But these messages go from device to device, not along the
// connection: its packets may overtake them, so that data may come before the RTU, and the QPs end
// whether a DREQ arrives or not. And because each message may be lost, be repeated or come late,
// most of the code is about messages that do not fit the state.
//
// The states and transitions are the standard's (IBA, 12.9.7.1 for the active and 12.9.7.2 for the
// passive side):
//
//	active    Idle ─ REQ ► RequestSent ─ ◄ REP ► ReplyRcvd ─ RTU ► Established
//	passive   RequestRcvd ─ REP ► ReplySent ─ ◄ RTU ► Established
//	end       Established ─ DREQ ► DisconnectSent ─ ◄ DREP ► Timewait ► Idle
//	          Established ─ ◄ DREQ ► DisconnectRcvd ─ DREP ► Timewait ► Idle
//
// MRARequestRcvd and MRAReplyRcvd are RequestSent and ReplySent of a side that has been told to
// wait longer; MRARequestSent and MRAReplySent are RequestRcvd and ReplyRcvd of the side that has
// told it.
//
// # Concurrency
//
// A [Manager] has one lock, which its user shares, see [Manager.Lock]. Messages are sent after
// it has been released.
//
// # Differences from ib_cm
//
//   - Communication IDs are random, not a counter.
//   - Peers are known by their GUID and their address, not by the GUID only: a request from
//     another address with the GUID and QP of a connected peer does not end its connection.
//   - Equal SIDR requests of two peers are different requests.
//   - A DREQ for a connection that has ended is answered also after timewait.
//   - Requests that found no room at their listener are counted.
//   - There are no alternate paths (LAP, APR), which ib_cm does not support on RoCE.
//
// A REP for a connection that this side has forgotten gets no answer, as from ib_cm
// (cm_rep_handler), although the standard has a REJ with reason 6 for it (IBA, 12.6.7.2): the peer
// learns of it after its last repetition. Kernels do that to programs, and a test must not be
// kinder.
package ibcm
