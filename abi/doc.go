// Package abi is the kernel's RDMA uAPI as Go: structures, enumerations and
// ioctl numbers of /dev/infiniband/uverbsN and rdma_cm, and the queue layouts
// of rxe and siw. All of it is generated.
//
//	Debian's linux-libc-dev ─► gen ─► zabi_<header>.go
//	                                  zabi_layout.txt      sizes, offsets, values
//
// Names follow from C by rule. A struct or union is its tag in camel case
// (ib_uverbs_create_cq_resp is [IbUverbsCreateCqResp]), a member likewise;
// constants keep their spelling, as in golang.org/x/sys/unix, and are untyped.
// An unnamed struct inside another is named after the path to it.
//
// Members of unions and flexible arrays have no Go field but a method of that
// name, which returns a pointer into the structure; the flexible array's
// points behind it, to memory that the caller must have. Padding is explicit.
// Integers are in host byte order unless their comment says big endian.
package abi

//go:generate go run ../gen
