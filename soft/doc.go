// Package soft makes RDMA devices in user space: RoCE v2 over UDP, in plain Go, for machines whose
// kernel has no RDMA, and for tests. A device speaks to all other RoCE v2 devices, such as network
// adapters and the kernel's rxe, and needs no privileges.
//
//	dev, err := soft.New(soft.Options{})                   // on all addresses of this machine
//	...
//	defer dev.Close()
//	t := &cm.Transport{Host: dev}
//	conn, err := (&cm.Dialer{Transport: t}).Dial(ctx, "10.9.0.1:7471")
//
// The other packages of this module use such a device like one of the kernel: uverbs.Devices
// lists it, and cm connects by it if it is the Host of the Transport. For package uverbs it is a
// device of the driver rxe.
//
// # Environment
//
// In a program that imports this package, if only for its effect, the environment variable
// VERBS_SOFT requests a device in user space:
//
//	VERBS_SOFT=1                      a device on all addresses of this machine
//	VERBS_SOFT=127.0.0.2,10.9.0.1     a device on these addresses
//
// Without it, or with VERBS_SOFT=0, there is none. The device is made when the program first lists devices, dials or listens, and then lives as
// long as the program. cm.DefaultTransport, which rsock, rmsg and rconn use as well, then connects
// by devices in user space only. In a program that does not import this package, or if the device
// cannot be made, these calls fail. There is no fallback in either direction.
//
// Two programs on one machine need different addresses or ports: the UDP port of an address
// belongs to one device, and port 4791 of a network namespace to the kernel's rxe if that is loaded.
//
// # Other systems
//
// Devices work on all systems that Go supports. On systems other than Linux, the descriptors that
// CompChannel.FD returns, and those of event loops (cm.Channel.FD, rmsg.Loop.FD), are not files of
// the operating system.
//
// # Closing
//
// [Device.Close] with open contexts or connections is like the removal of a device of the kernel:
// QPs are moved to the error state and connections end; open contexts get EventDeviceFatal, and
// calls fail with EIO, except Close of objects.
package soft
