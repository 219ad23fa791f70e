// Package rdmatest helps to test programs that use RDMA. It finds the devices of the machine,
// connects endpoints on them, and checks that a test leaks no objects of the kernel:
//
//	func TestEcho(t *testing.T) {
//		rdmatest.Each(t, func(t *testing.T, d rdmatest.Device) {
//			rdmatest.CheckLeaks(t)
//			l, err := rsock.Listen("rdma", d.ListenAddr())
//			...
//		})
//	}
//
// Where there is no RDMA, such tests are skipped, or fail if the environment has
// RDMATEST=require. The command rdmalab runs them on a kernel with RDMA, in a virtual machine:
//
//	go test -exec rdmalab ./...
package rdmatest
