// Package ucma is the file /dev/infiniband/rdma_cm in user space: the commands and events of the
// kernel's rdma_ucm and rdma_cm (drivers/infiniband/core/ucma.c, cma.c) for RoCE devices, with the
// kernel's states and error numbers. Package ibcm exchanges the messages with peers.
//
//	package cm ──write──► [File] ──► IDs ──► ibcm ──► QP 1 of a [Device]
//	           ◄─GET_EVENT─ queue ◄── events
//
// A [Manager] is what the kernel is for one machine: it knows the devices, and the ports that
// are in use. The lock of its ibcm.Manager guards everything.
//
// # Differences from the kernel
//
//   - Events that need no answer of a peer, such as ADDR_RESOLVED, are there when the command
//     returns.
//   - Neighbours are not resolved: that a host does not exist is noticed when it does not
//     answer, unless the [Router] knows.
//   - Loopback addresses are ordinary addresses if a device has one of the family.
//   - Ports below 1024 need no privileges.
//   - A multicast group's packets are delivered by the network when a QP is attached to the
//     group; joining only reports the address.
//   - GET_EVENT never waits: the file is in non-blocking mode.
//   - Of several commands for one purpose it has the ones that package cm uses, with IP addresses
//     only, not AF_IB.
package ucma
