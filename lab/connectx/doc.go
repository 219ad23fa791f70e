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
// their users.
//
// The layouts of commands, contexts and registers are generated from the kernel's mlx5_ifc.h
// (package ifc). Their meaning comes from Linux's drivers and rdma-core's libmlx5, which comments
// name where the code depends on them. "As the driver does" is no check: all that the guest's memory
// holds may be wrong or change at any time, so a request is copied before it is checked.
package connectx
