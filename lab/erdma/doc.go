// Package erdma emulates an elastic RDMA adapter of Alibaba Cloud in iWARP mode: it serves the
// commands, doorbells and queues of Linux's driver erdma, which finds it on a virtual machine's PCI bus
// through package vfiouser. Package engine executes the RDMA operations.
//
//	vfiouser ─► Device      device.go: registers, reset; doorbell.go: pages of doorbells
//	              ├─► commands   command.go ─► eq.go, cq.go, mr.go, qp.go
//	              └─► QPs        send.go, recv.go ─► engine ─► cq.go: completions, eq.go: events
//
// The kernel's iWARP connection manager makes a TCP connection over the adapter's network link, which is
// a virtio card with the same MAC address, and then names its ends to the adapter. The TCP of a real
// adapter takes over there; here the two QPs that name the same connection are connected in the engine
// (link.go).
//
// The layouts are those of Linux's erdma_hw.h, whose names comments give. What the driver does not
// initialize is not checked: its commands come from its stack. All else that the guest's memory holds may
// be wrong or change at any time, so a request is copied before it is checked.
package erdma
