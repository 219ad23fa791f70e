// Package verbstest is a network in memory for tests of programs that use RDMA. It connects devices
// of package soft in place of UDP, so tests run without hardware, RDMA in the
// kernel and privileges. Package rdmatest is for tests on the devices of the machine.
//
//	network := verbstest.NewNetwork(verbstest.Options{})
//	verbstest.TraceOnFailure(t, network)
//	device, err := soft.New(soft.Options{
//		Network: network,
//		Host:    "client",
//		Addrs:   []netip.Addr{netip.MustParseAddr("10.0.0.1")},
//	})
//	...
//	defer device.Close()
//	dialer := cm.Dialer{Transport: &cm.Transport{Host: device}}
//
// # Faults
//
// A [Network] is perfect by default. A test makes faults with:
//
//   - A [Link] with delay, jitter, bandwidth, loss, duplication, corruption or reordering, for all
//     addresses or for one direction between two of them ([Network.SetLink]).
//   - A [Filter], which sees each packet, decoded, and can drop, delay, duplicate or corrupt it, for
//     example the third acknowledgement ([Nth]).
//   - [Network.Partition], which separates addresses until [Network.Heal].
//   - [Network.SetReceiver], which makes a device slow and limits its receive queue.
//   - [Network.Remove], which removes a device: its peers get no more answers, as from a machine that has
//     died, and programs that use the device see its removal. [Network.Partition] leaves both devices as they are.
//
// # Traces
//
// The network records the last packets. [Network.Trace] returns them as text, [Network.WritePcap]
// writes a capture file for Wireshark. [TraceOnFailure] does both when a test fails.
//
// # Time
//
// Delays use package time. Within a bubble of testing/synctest, which has a fake clock, they cost
// no time, and a test of timeouts takes milliseconds. There, each packet needs at least about one
// microsecond, and packets that devices send at one moment are handled together, in an order
// independent of the scheduler: the same seed and the same test give the same trace, but for the
// addresses of memory regions. Devices choose keys, packet sequence numbers and communication IDs
// at random; testing/cryptotest.SetGlobalRandom makes them repeatable as well. Make the network
// within the bubble.
//
// A bubble's clock stands still while a goroutine waits for a mutex. Programs that close dialed
// connections of rsock with a mutex held, as net/http and gRPC do, set Linger to -1 in the options
// of the rsock.Dialer. An rsock.Fallback dials and listens by real TCP, outside the network.
//
// With a real clock, packets arrive at once if the link has no delay. The order of packets, and
// so the effect of random faults, then depends on the scheduler. In both cases goroutines only
// run while a device has packets to receive: an idle network has none.
package verbstest
