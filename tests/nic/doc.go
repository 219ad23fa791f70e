// Package nic judges the emulated ConnectX of rdmalab --nic by programs that nobody of this project
// wrote: the kernel's own drivers, and what rdma-core and perftest have for them.
//
//	ibv_devinfo, ibv_*_pingpong      rping, ucmatose, ...      perftest      pyverbs' tests
//	        └──────────────────────────────┴──────────────────────┴──────────────┘
//	                                   libibverbs, libmlx5
//	                                   mlx5_ib, mlx5_core          in the guest
//	                                   lab/connectx           in the lab
//
// Both sides of a test are on one adapter, mlx5_0. Each test also fails if the drivers have written
// a warning to the kernel's log.
//
// make test-nic runs the shortest pass of each, make nic all of them on several kernels, with
// several releases of rdma-core and on both link layers; its table is in docs/lab.md. Without an
// adapter the tests are skipped.
package nic
