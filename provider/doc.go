// Package provider defines the interface between package uverbs and the drivers
// of RDMA devices. It is for authors of drivers.
//
//	uverbs           Open ──► PD, CQ, SRQ, QP, AH, MR          Post, Poll, Arm
//	                  │             │                                 │
//	provider       Driver ─────► Context ──────────────► SendQueue, RecvQueue,
//	                  │             │                    CompletionQueue
//	                  │             │                                 │
//	kernel         ioctl on /dev/infiniband/uverbsN      queues in shared memory,
//	               (run by uverbs, with the UHW)         doorbells, device registers
//
// A driver knows the layout of its device's queues, the encoding of requests and completions, and
// the private structures ([UHW]) that its kernel side expects in each verb. Package uverbs runs all
// verbs and manages objects, handles, lifetimes, events and errors of the control path.
//
// A driver's package calls [Register] in its init function, so that programs only import it:
//
//	import _ "example.com/rdma/irdma"
//
// Drivers for rxe, siw, mlx5 and erdma are part of package uverbs. A driver registered for one of them
// replaces it. docs/drivers.md is the guide for authors, docs/provider.md the contract in full, and package
// providertest a kit for tests.
package provider
