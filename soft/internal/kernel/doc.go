// Package kernel implements the kernel's interface to RDMA devices, /dev/infiniband/uverbsN, for a
// device of package engine: ioctls, write commands, events and the mapping of queues. It answers
// as the kernel's uverbs and rxe do (drivers/infiniband/core/uverbs_*.c, sw/rxe/rxe_verbs.c of
// Linux 6.12), with the same error numbers.
//
//	package uverbs ──► host.File ──┬─► file.Ioctl ──► methods ──┐
//	provider/rxe ────► host.File ──┴─► file.Write ──► commands ─┴─► engine
//	                                   file.Mmap ───► rings of the engine
//	                              eventFile.Read ◄── callbacks of the engine
//
// Of several commands for one purpose it has those that package uverbs uses. The others fail, as
// do the commands that rxe does not support.
//
// # Locks
//
// A file's lock guards its objects and is not held while the engine is called. The locks of event
// files and of the list of event files are the only ones that the engine's callbacks take.
package kernel
