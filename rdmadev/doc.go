// Package rdmadev describes the RDMA devices of a machine: their ports, addresses and counters. It
// works with the devices of every driver, without device nodes, privileges and opened devices.
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
// A missing or unreadable attribute has its zero value, or the value that its documentation states;
// the error of an unreadable one is in Errs of the device or the port.
//
// On systems without RDMA, and on other systems than Linux, there are no devices, and functions
// that need the kernel fail with an error that matches [verbs.ErrNoRDMA].
//
// A process lists its own devices in user space, see package soft, with their
// ports, counters and resources; other netlink functions fail for them with errors.ErrUnsupported.
//
// Package uverbs opens a device if a driver supports it.
package rdmadev
