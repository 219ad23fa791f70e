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
//   - There are no alternate paths (LAP, APR), which ib_cm does not support on RoCE.
package ibcm
