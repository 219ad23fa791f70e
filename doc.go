// Package verbs provides the values that the packages of this module share: work requests and
// completions, addresses, access rights, states, attributes of devices and ports, and errors. It
// makes no system calls, and builds on systems without RDMA as well.
//
//	program ─► rsock   net.Conn and net.Listener over RDMA
//	        ─► rmsg    asynchronous messages with an event loop
//	        ─► rconn   connections with regions and advertisements
//	        ─► cm      connections to IP addresses (rdma_cm)
//	        ─► uverbs  devices, protection domains, regions, queue pairs
//	             │
//	        package verbs: the values that all of these use
//
// Constants have the values of the kernel's headers unless their type says otherwise, so
// they can be compared with C programs, traces and specifications.
package verbs
