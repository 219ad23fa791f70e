// Package abi contains the kernel's RDMA uAPI in Go, as far as this repository uses it:
// structures and numbers of /dev/infiniband/uverbsN and rdma_cm, the queue layouts of rxe and
// siw, and the private structures of mlx5 and erdma. All of it is generated:
//
//	Debian's linux-libc-dev ─┐
//	names that the code uses ┴► gen ─► zabi_<header>.go
//	                                   zabi_layout.txt      sizes, offsets, values
//
// Names are derived from C. A struct or union is named after its tag in camel case
// (ib_uverbs_create_cq_resp is [IbUverbsCreateCqResp]), and so is a member. Constants
// have the same names, as in golang.org/x/sys/unix, and are untyped. An unnamed struct
// inside another is named after the path to it.
//
// Members of unions and flexible arrays that the code reads are methods in Go. They return a pointer
// into the structure, or for a flexible array to the memory after it, which the caller must provide.
// Padding is explicit. Integers are in host byte order unless their comment states big endian.
package abi

//go:generate go run ../gen
