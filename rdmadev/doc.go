// Package rdmadev describes the RDMA devices of a machine: their ports, addresses and
// counters. It works with the devices of every driver, and needs no device node, no
// privilege and no opened device.
//
//	/sys/class/infiniband ─┬─► Devices, Find, Watch ──► Device ──► Port ──► GIDs, PKeys, Counters
//	                       │                              │
//	RDMA netlink ──────────┴──────────────────────────────┴─► QPs, CQs, MRs, ... and statistics
//
// The functions correspond to the commands of iproute2: rdma-dev(8), rdma-link(8),
// rdma-resource(8), rdma-statistic(8), rdma-system(8) and rdma-monitor(8). Those that change
// something require CAP_NET_ADMIN.
//
// Drivers differ in the attributes that they have, and some fail when an attribute is read.
// An attribute that is missing is left at its zero value, or what its documentation states;
// one that cannot be read is too, and the error is added to Errs of the device or the port.
// Neither hides the others.
//
// On systems without RDMA, and on other systems than Linux, there are no devices, and what
// needs the kernel fails with an error that matches [verbs.ErrNoRDMA].
//
// Devices in user space, see package soft, are listed by the process that has them, with their
// ports, counters and resources; what else asks netlink fails with errors.ErrUnsupported.
//
// A device that is listed here can be opened with package uverbs if a driver supports it.
package rdmadev
