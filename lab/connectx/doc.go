// Package connectx is a ConnectX network adapter in software: it answers the commands, doorbells
// and queues of Linux' mlx5 drivers, which find it on a virtual machine's PCI bus through package
// vfiouser. Package engine executes its RDMA.
//
//	vfiouser ─► Device      pci.go, bar.go: configuration, initialization segment, doorbells
//	              │         core.go: commands by opcode; counter.go: what they report of several parts
//	              ├─► transport  RDMA: pd.go, mkey.go, cq.go, srq.go, qp.go ─► wqe.go, umr.go ─► engine
//	              ├─► ethernet   eth.go: queues; flow.go: tables; frame.go: frames ─► package wire
//	              └─► firmware   command.go, eq.go, caps.go, resources.go, hca.go, port.go
//
// The halves know what they are given: the network function knows the CQs and keys of RDMA, and
// both know the firmware. All stand on what is in env.go (memory, interrupts, recorder, clock,
// faults), object.go (numbered objects, and the handlers of commands about them), ring.go and
// sendqueue.go (queues in the guest's memory). None of these refers to one that stands on it.
//
// The layouts of commands, contexts and registers are generated from the kernel's mlx5_ifc.h
// (package ifc). The sources of what they mean are Linux' drivers and rdma-core's libmlx5.
package connectx
