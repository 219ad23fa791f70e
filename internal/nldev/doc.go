// Package nldev speaks the netlink protocol of the kernel's RDMA core
// (RDMA_NL_NLDEV of include/uapi/rdma/rdma_netlink.h, drivers/infiniband/core/nldev.c):
// it lists devices, ports, resources and statistics, and changes devices.
package nldev
