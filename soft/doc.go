// Package soft makes RDMA devices in user space: RoCE v2 over UDP, in plain Go, for machines whose
// kernel has no RDMA, and for tests. Its peers are other RoCE v2 devices: of this package, the
// kernel's rxe and an emulated ConnectX have been tried. It needs no privileges.
//
//	dev, err := soft.New(soft.Options{})                   // on all addresses of this machine
//	...
//	defer dev.Close()
//	t := &cm.Transport{Host: dev}
//	conn, err := (&cm.Dialer{Transport: t}).Dial(ctx, "10.9.0.1:7471")
//
// The other packages of this module use it like a device of the kernel: uverbs.Devices lists it, as
// a device of the driver rxe, and cm connects by it if it is the Host of the Transport.
//
// # Environment
//
// In a program that imports this package, if only for its effect, the environment variable
// VERBS_SOFT requests a device in user space:
//
//	VERBS_SOFT=1                      a device on all addresses of this machine
//	VERBS_SOFT=127.0.0.2,10.9.0.1     a device on these addresses
//
// Without it, or with VERBS_SOFT=0, there is none. The device is made when the program first lists
// devices, dials or listens, and lives as
// long as the program. cm.DefaultTransport, which rsock, rmsg and rconn use as well, then connects
// only by devices in user space, and kernel devices are never a fallback: these calls fail if the
// device cannot be made, or if the program does not import this package.
//
// Two programs on one machine need different addresses or ports: the UDP port of an address belongs
// to one device, and port 4791 of a network namespace to the kernel's rxe if that is loaded.
//
// # Other systems
//
// Devices work on Linux, macOS and Windows, and build on the BSDs. On systems other than Linux, the operating system
// does not know the descriptors of CompChannel.FD and of event loops (cm.Channel.FD, rmsg.Loop.FD).
//
// # Closing
//
// [Device.Close] with open contexts or connections is like the removal of a kernel device:
// QPs move to the error state and connections end; open contexts get EventDeviceFatal, and
// calls except Close fail with EIO.
package soft
