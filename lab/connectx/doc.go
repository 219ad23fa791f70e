// Package connectx emulates a ConnectX network adapter: it serves the commands, doorbells and queues
// of Linux's mlx5 drivers, which find it on a virtual machine's PCI bus through package vfiouser.
// Package engine executes the RDMA operations.
//
//	vfiouser ─► Device      pci.go, bar.go: configuration, initialization segment, doorbells
//	              │         core.go: commands by opcode; counter.go: counters of several parts
//	              ├─► transport  RDMA: pd.go, mkey.go, cq.go, srq.go, qp.go ─► wqe.go, umr.go ─► engine
//	              ├─► ethernet   eth.go: queues; flow.go: tables; frame.go: frames ─► package wire
//	              └─► firmware   command.go, eq.go, caps.go, resources.go, hca.go, port.go
//
// The network function uses the CQs and keys of the transport, and both use the firmware. All use
// env.go (memory, interrupts, recorder, clock, faults), object.go (numbered objects and the handlers
// of their commands), ring.go and sendqueue.go (queues in the guest's memory), which use none of
// their users. What is not a ConnectX's alone is in package pcidev.
//
// A work request of the guest goes through these files:
//
//	bar.go         Device.doorbell: the store to a UAR
//	blueflame.go   blueFlame.store: collects the parts of a request, or passes a doorbell on
//	device.go      Device.send: finds the queue
//	sendqueue.go   shown.doorbell: how far the guest has posted
//	               engine.QP.Doorbell: locks the QP, for all that follows
//	wqe.go         sender.refill: translates requests, whose packets the engine sends
//	completion.go  qp.complete: when the engine has the peer's answer; the entry's layout is in cqe.go
//	cq.go          cq.put: writes the entry
//	eq.go          eqTable.post: if the CQ is armed, writes the event and interrupts the guest
//
// The layouts of commands, contexts and registers are generated from the kernel's mlx5_ifc.h
// (package ifc). Their meaning comes from Linux's drivers and rdma-core's libmlx5, which comments
// name where the code depends on them. "As the driver does" is no check: all that the guest's memory
// holds may be wrong or change at any time, so a request is copied before it is checked.
package connectx
