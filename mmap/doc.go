// Package mmap holds memory shared with the kernel and the few unsafe
// operations that need it, so that everything above can be plain Go.
//
//	                kernel
//	  ┌───────────────┴────────────────┐
//	Region  a queue the driver made    Buffer  pages we made, pinned by an MR
//	  │                                  │
//	Ring    slots + two index words    []byte  what the program reads and writes
//
// A [Ring] follows one rule: the side that owns an index word stores it with
// release, the other side loads it with acquire (sync/atomic gives both). An
// index word the kernel wrote is masked the moment it is read, so a wrong
// value can never address memory outside the region; the layout itself is
// checked once, when the ring is made.
//
// Nothing here locks. Whoever owns a queue serialises access to it, including
// against Close: after Close the memory is gone, and slices of it that a
// program kept fault when touched.
package mmap
