// Package connectx is a ConnectX network adapter in software: it answers the commands, doorbells
// and queues of Linux' mlx5 drivers, which find it on a virtual machine's PCI bus through package
// vfiouser. Package engine executes its RDMA.
//
//	vfiouser ─► bar.go      PCI configuration, initialization segment, doorbells ─► blueflame.go
//	            command.go  command queue ─► handlers by opcode, of the part or the object that they concern
//	            eq.go       event queues ─► interrupts
//	            counter.go  what QUERY_Q_COUNTER, QUERY_VPORT_COUNTER and PPCNT count
//	            mkey.go ◄─ umr.go, requests that configure keys
//	            mkey.go, cq.go, qp.go, srq.go ─► wqe.go ─► engine ─► cqe.go
//
// The layouts of commands, contexts and registers are generated from the kernel's mlx5_ifc.h
// (package ifc). The sources of what they mean are Linux' drivers and rdma-core's libmlx5.
package connectx
