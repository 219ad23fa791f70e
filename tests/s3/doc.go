// Package s3 moves objects by RDMA between this library and programs of others, from the module of
// versitygw: its gateway vgwrdma, a server of hipobj-rc-v2 in Go and C++, and cuobjtest, a client of
// cuObject's protocol with libmlx5. Their own checks and the bytes decide.
//
//	gateway_test.go    ── HTTP, signed ──►  build/s3/vgwrdma  ◄── mkpeers ── module, C++ as it is
//	                   ◄── RC on rxe0 ───►                                   and testdata/*.c
//	cuobjtest_test.go  ◄─ HTTP, signed ───  build/s3/cuobjtest
//	                   ◄── DC on mlx5 ───►
//
// Command mkpeers needs the network for the module, the tests need only what it has built.
package s3
