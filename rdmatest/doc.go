// Package rdmatest helps to test programs that use RDMA on the devices of the machine. It finds
// these, connects endpoints and queue pairs on them, and checks that a test leaks no objects.
// Package verbstest has networks in memory instead:
//
//	func TestEcho(t *testing.T) {
//		rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
//			rdmatest.CheckLeaks(t)
//			l, err := rsock.Listen("rdma", d.ListenAddr())
//			...
//		})
//	}
//
// Without RDMA these tests are skipped, or fail if the environment has
// RDMATEST=require. The command rdmalab runs them on a kernel with RDMA, in a virtual machine;
// with VERBS_SOFT they run on a device in user space, see package soft:
//
//	go test -exec rdmalab ./...
//	VERBS_SOFT=127.0.0.1 go test -p 1 ./...
//
// -p 1 is necessary because an address belongs to the device of one program.
package rdmatest

import _ "github.com/goverbs/verbs/soft" // for VERBS_SOFT
